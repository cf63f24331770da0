#include "apps/machine.h"

#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>
#include <memory>

#include "gateway/listen_error.h"

namespace sixfold::apps {
std::string CpuName() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const size_t colon = line.find(": ");
    if (line.rfind("model name", 0) == 0 && colon != std::string::npos)
      return line.substr(colon + 2);
  }
  return "";
}

Status CheckPort(const std::string& host, uint16_t port) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  addrinfo* list = nullptr;
  if (const int error = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &list); error != 0)
    return gateway::ResolveError(host, ::gai_strerror(error));
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> addresses(list, &::freeaddrinfo);
  int first = 0;  // of the errors
  for (const addrinfo* at = list; at != nullptr; at = at->ai_next) {
    const int fd = ::socket(at->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int error = fd < 0 ? errno : 0;
    const int on = 1;
    if (fd >= 0) ::setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (error == 0 && ::bind(fd, at->ai_addr, at->ai_addrlen) != 0) error = errno;
    if (error == 0 && ::listen(fd, 1) != 0) error = errno;
    if (fd >= 0) ::close(fd);
    if (error == 0) return OkStatus();
    if (error == EADDRINUSE) return gateway::ListenError(host, port, error);
    if (first == 0) first = error;
  }
  return gateway::ListenError(host, port, first);
}

}  // namespace sixfold::apps
