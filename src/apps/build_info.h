// What this program is made of.
#pragma once

#include <string>

namespace sixfold::apps {

struct BuildInfo {
  std::string version;  // "0.1.0"
  std::string commit;  // "d6f45ba0c1e2", "d6f45ba0c1e2, changed", "unknown" for an unpacked archive
  std::string type;    // "Release"
  std::string compiler;  // "GNU 12.2.0"
  std::string mpi;       // "Open MPI v4.1.4", "" when it was left out
  std::string isa;       // the widest instructions of this machine that the program can use
};
BuildInfo GetBuildInfo();

// The answer to --version: "sixfold 0.1.0" and a line for each of the others.
std::string VersionText();

}  // namespace sixfold::apps
