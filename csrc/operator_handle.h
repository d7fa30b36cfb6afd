// Operators called through the dispatcher; without the headers of autograd, which take ten seconds to compile.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

namespace jocor_fast {

// An operator by its name, "jocor_fast::…", for `call`: autograd, torch.compile and every mode see it.
template <class Signature>
auto operator_handle(const char* name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Signature>();
}

}  // namespace jocor_fast
