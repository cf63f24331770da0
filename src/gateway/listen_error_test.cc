#include "gateway/listen_error.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>

namespace sixfold::gateway {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// Each names what to change and nothing else.
TEST(ListenError, NamesThePortTheAddressOrTheName) {
  const Status used = ListenError("127.0.0.1", 8000, EADDRINUSE);
  EXPECT_EQ(used.code(), StatusCode::kUnavailable);
  EXPECT_THAT(used.message(), AllOf(HasSubstr("127.0.0.1:8000 is in use"), HasSubstr("--port 8001"), Not(HasSubstr("--host"))));
  EXPECT_THAT(ListenError("127.0.0.1", 65535, EADDRINUSE).message(), HasSubstr("--port 65534"));
  const Status elsewhere = ListenError("10.9.8.7", 8000, EADDRNOTAVAIL);
  EXPECT_EQ(elsewhere.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(elsewhere.message(), AllOf(HasSubstr("has the address 10.9.8.7"), HasSubstr("--host"), Not(HasSubstr("--port"))));
  EXPECT_THAT(ListenError("::1", 8000, EADDRNOTAVAIL).message(), HasSubstr("[::1]:8000"));
  EXPECT_THAT(ListenError("::1", 8000, EAFNOSUPPORT).message(), AllOf(HasSubstr("no IPv6"), HasSubstr("--host")));
  const Status denied = ListenError("0.0.0.0", 80, EACCES);
  EXPECT_EQ(denied.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(denied.message(), AllOf(HasSubstr("below 1024"), HasSubstr("CAP_NET_BIND_SERVICE"), HasSubstr("--port"), Not(HasSubstr("--host"))));
  EXPECT_THAT(ListenError("0.0.0.0", 8080, EACCES).message(), AllOf(Not(HasSubstr("below 1024")), HasSubstr("--port")));
  EXPECT_THAT(ResolveError("no.such", "why not").message(), AllOf(HasSubstr("'no.such'"), HasSubstr("why not"), HasSubstr("--host")));
}

}  // namespace
}  // namespace sixfold::gateway
