// Tables and progress for people.
#ifndef ATTEND_CLIENT_CLI_TABLE_H_
#define ATTEND_CLIENT_CLI_TABLE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace attend::cli {

// Rows under a heading, columns as wide as their widest cell, numbers to the right.
class Table {
 public:
  explicit Table(std::vector<std::string> heading) : rows_{std::move(heading)} {}
  void Add(std::vector<std::string> row) { rows_.push_back(std::move(row)); }
  std::string ToString() const;

 private:
  std::vector<std::vector<std::string>> rows_;
};

std::string Bytes(double bytes);      // "12.3 MB" (powers of ten)
std::string SizeText(int64_t bytes);  // "64 MiB" where it is whole, else "1000 bytes"
std::string Seconds(double seconds);  // "1.23 ms"

// A line on a terminal that is written over and over; nothing where standard error is none.
class Progress {
 public:
  Progress();
  ~Progress();
  void Show(absl::string_view text);

 private:
  const bool terminal_;
  bool shown_ = false;
};

}  // namespace attend::cli

#endif  // ATTEND_CLIENT_CLI_TABLE_H_
