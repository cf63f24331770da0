// docs/api.md, made from the table of fields.
#pragma once

#include <string>

namespace sixfold::gateway {

std::string ApiDocs();

}  // namespace sixfold::gateway
