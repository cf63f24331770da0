#include "gateway/listen_error.h"

#include <cerrno>
#include <cstring>

namespace sixfold::gateway {
namespace {

constexpr const char* kAddresses = "127.0.0.1 for this machine alone, 0.0.0.0 for every interface";
constexpr int kPrivilegedPorts = 1024;

std::string Where(const std::string& host, uint16_t port) {
  const bool ipv6 = host.find(':') != std::string::npos;
  return (ipv6 ? "[" + host + "]" : host) + ":" + std::to_string(port);
}

}  // namespace

Status ListenError(const std::string& host, uint16_t port, int error) {
  const std::string where = Where(host, port);
  const std::string failed = "cannot listen on " + where + ": ";
  switch (error) {
    case EADDRINUSE: {
      const std::string other = port < UINT16_MAX ? std::to_string(port + 1) : std::to_string(port - 1);
      return {StatusCode::kUnavailable, where + " is in use by another program; stop it, or choose another port with --port " +
                                            other + " (0: any free one)"};
    }
    case EADDRNOTAVAIL:
      return InvalidArgument(failed + "no interface of this machine has the address " + host + "; choose another with --host (" +
                             kAddresses + ")");
    case EAFNOSUPPORT:
    case EPROTONOSUPPORT:
      return InvalidArgument(failed + "this machine has no " + (host.find(':') != std::string::npos ? "IPv6" : "such") +
                             " addresses; choose another with --host (" + kAddresses + ")");
    case EACCES:
    case EPERM:
      if (port < kPrivilegedPorts) {
        return InvalidArgument(failed + "ports below 1024 need root or CAP_NET_BIND_SERVICE; choose one from 1024 with --port, such as --port 8000");
      }
      return InvalidArgument(failed + "this process may not use the port (" + std::strerror(error) + "); choose another with --port");
    default: return InvalidArgument(failed + std::strerror(error));
  }
}

Status ResolveError(const std::string& host, std::string_view why) {
  return InvalidArgument("--host '" + host + "' is neither an address nor a name that resolves here: " + std::string(why) + "; give --host " +
                         kAddresses);
}

}  // namespace sixfold::gateway
