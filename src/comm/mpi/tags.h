// What a message is for, in the few bits of an MPI tag: a collective that one rank skipped cannot
// be taken for the next one.
#pragma once

#include <cstdint>

#include "comm/transport.h"

namespace sixfold::mpi {

class Tags {
 public:
  // tag_max >= 32767, as MPI promises.
  explicit Tags(int tag_max);
  int Of(const Operation& operation) const;
  // The operation of a tag, as far as its bits tell; `near`, one of the same time, fills in the
  // rest.
  Operation Read(int tag, const Operation& near) const;

 private:
  int group_bits_, sequence_bits_;
};

}  // namespace sixfold::mpi
