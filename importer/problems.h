#pragma once
#include <string>
#include <vector>

#include "graph/error.h"

namespace weir {

// What is wrong with a file, gathered part by part so that the user is told all of it at once.
class Problems {
 public:
  void Add(const Error& error);
  // Runs `body`; whether it threw no Error. The Error is added.
  template <class Body>
  bool Try(Body body) {
    try {
      body();
      return true;
    } catch (const Error& error) {
      Add(error);
      return false;
    }
  }
  // Throws when there are any: a single one as it was.
  void Report() const;

 private:
  std::vector<Error> shown_;
  size_t count_ = 0;
};

}  // namespace weir
