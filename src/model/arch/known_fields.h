// Fields of config.json that no family reads: either they cannot change what one forward pass computes, or they would
// and are not implemented, and then only their neutral value is accepted.
#pragma once

#include "base/status.h"
#include "model/arch/fields.h"
#include "model/config.h"

namespace sixfold {

// Looks at everything that was not read. A field that would change the arithmetic is an error that names it and its
// neutral value; fields that nobody knows go to config->unknown_fields.
Status CheckUnreadHfFields(const Fields& fields, ModelConfig* config);
Status CheckUnreadGgufFields(const Fields& fields, ModelConfig* config);

}  // namespace sixfold
