#include "client/cli/table.h"

#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstdio>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace attend::cli {

std::string Table::ToString() const {
  std::vector<size_t> widths(rows_[0].size());
  // A column is one of numbers where its first cell looks like one.
  std::vector<bool> right(widths.size());
  for (size_t c = 0; c < widths.size(); ++c) {
    for (const auto& row : rows_) widths[c] = std::max(widths[c], row[c].size());
    if (rows_.size() > 1 && !rows_[1][c].empty()) {
      const char first = rows_[1][c][0];
      right[c] = std::isdigit(static_cast<unsigned char>(first)) || first == '-' || first == '+';
    }
  }
  std::string text;
  for (const auto& row : rows_) {
    std::string line = " ";
    for (size_t c = 0; c < row.size(); ++c) {
      const std::string pad(widths[c] - row[c].size(), ' ');
      absl::StrAppend(&line, " ", right[c] ? pad : "", row[c], right[c] ? "" : pad, " ");
    }
    line.erase(line.find_last_not_of(' ') + 1);
    absl::StrAppend(&text, line, "\n");
  }
  return text;
}

std::string Bytes(double bytes) {
  const char* const units[] = {"B", "kB", "MB", "GB", "TB"};
  size_t unit = 0;
  while (bytes >= 1000 && unit < 4) bytes /= 1000, ++unit;
  if (unit == 0) return absl::StrFormat("%.0f %s", bytes, units[unit]);
  return absl::StrFormat("%.3g %s", bytes, units[unit]);
}

std::string SizeText(int64_t bytes) {
  const char* const units[] = {"bytes", "KiB", "MiB", "GiB"};
  size_t unit = 0;
  while (bytes != 0 && bytes % 1024 == 0 && unit < 3) bytes /= 1024, ++unit;
  return absl::StrCat(bytes, " ", units[unit]);
}

std::string Seconds(double seconds) {
  if (seconds >= 1) return absl::StrFormat("%.3f s", seconds);
  if (seconds >= 1e-3) return absl::StrFormat("%.3f ms", seconds * 1e3);
  return absl::StrFormat("%.1f us", seconds * 1e6);
}

Progress::Progress() : terminal_(isatty(STDERR_FILENO) == 1) {}

Progress::~Progress() {
  if (shown_) std::fputs("\r\033[K", stderr);
}

void Progress::Show(absl::string_view text) {
  if (!terminal_) return;
  shown_ = true;
  std::fprintf(stderr, "\r\033[K%.*s", static_cast<int>(text.size()), text.data());
  std::fflush(stderr);
}

}  // namespace attend::cli
