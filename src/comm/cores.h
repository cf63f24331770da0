// How many processors this process may run on.
#pragma once

namespace sixfold {

int UsableCores();  // at least 1

}  // namespace sixfold
