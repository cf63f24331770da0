// Why a server cannot listen, in words that name what to change: the address, the port, or the name.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/status.h"

namespace sixfold::gateway {

// error: errno of socket, bind or listen. kUnavailable where another moment may do (a port in use), else kInvalidArgument.
Status ListenError(const std::string& host, uint16_t port, int error);
// host: neither an address nor a name that is known here. why: the resolver's words.
Status ResolveError(const std::string& host, std::string_view why);

}  // namespace sixfold::gateway
