#include "apps/machine.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>

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
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  if (port == 0 || ::inet_pton(AF_INET, host.c_str(), &address.sin_addr) != 1) return OkStatus();
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return OkStatus();
  const int on = 1;
  ::setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  int error =
      ::bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0 ? 0 : errno;
  if (error == 0 && ::listen(fd, 1) != 0) error = errno;
  ::close(fd);
  if (error == 0) return OkStatus();
  return {StatusCode::kUnavailable,
          "cannot listen on " + host + ":" + std::to_string(port) + ": " + std::strerror(error) +
              "; choose another port with --port, or --port 0 for any free one"};
}

}  // namespace sixfold::apps
