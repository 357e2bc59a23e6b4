// The installed client package works for a project outside this one: the README's example.
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "tests/client/test_server.h"

namespace attend {
namespace {

TEST(Package, IsUsableByFindPackageAndByPkgConfig) {
  testing::TestServer server;
  const std::string command =
      std::string("bash tests/client/package_test.sh ") + ATTEND_BUILD_DIR + " " + server.address();
  EXPECT_EQ(std::system(command.c_str()), 0);
}

}  // namespace
}  // namespace attend
