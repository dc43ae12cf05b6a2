// Which calls may run. A call carries machine code, and a program reads and writes what it was compiled for,
// so a call runs only if
//   - its digest is the SHA-256 of how it is launched, of its signature, of the SHA-256 of its binary and of
//     its forms (runtime_forms.h), if it has them,
//   - the process permits this digest (jax_cocktail/runtime/trust.py decides),
//   - the buffers that it passes are those of its signature.
#ifndef COCKTAIL_RUNTIME_TRUST_H
#define COCKTAIL_RUNTIME_TRUST_H

#include <stdint.h>
#include <string.h>

#include "runtime_forms.h"
#include "runtime_sha256.h"
#include "xla/ffi/api/c_api.h"

#define CK_NOT_PERMITTED                                                                                \
  "neither this process nor this user's cache has compiled it, so its machine code does not run "       \
  "(digest %.16s...); if you trust where it comes from, call jax_cocktail.load(trust=...) before the "  \
  "first call, with the file that contains it"
#define CK_MISFIT                                                                                       \
  "the call passes other types, shapes or shared buffers than the program was compiled for; the "       \
  "module was changed: compile it again"

namespace {

// The number of operands, of results and of pairs that share memory. Then of every operand and result the
// type, the rank and the dimensions; then of every pair the operand and the result.
typedef Numbers Signature;

bool IsSame(const Numbers& a, const Numbers& b) {
  return a.size == b.size && memcmp(a.numbers, b.numbers, a.size * sizeof(int64_t)) == 0;
}

const XLA_FFI_Buffer* BufferOf(const XLA_FFI_CallFrame* frame, int64_t number) {
  void* const* place = number < frame->args.size ? frame->args.args + number
                                                 : frame->rets.rets + (number - frame->args.size);
  return static_cast<const XLA_FFI_Buffer*>(*place);
}

bool Fits(const Signature& signature, const XLA_FFI_CallFrame* frame, const Values& values = {}) {
  const int64_t* next = signature.numbers;
  const int64_t* const end = next + signature.size;
  int64_t operands = frame->args.size, results = frame->rets.size;
  if (signature.size < 3 || next[0] != operands || next[1] != results) return false;
  int64_t pairs = next[2];
  next += 3;
  for (int64_t i = 0; i < operands + results; ++i) {
    const XLA_FFI_Buffer* buffer = BufferOf(frame, i);
    if (end - next < 2 || next[0] != int64_t(buffer->dtype) || next[1] != buffer->rank) return false;
    next += 2;
    if (end - next < buffer->rank) return false;
    for (int64_t d = 0; d < buffer->rank; ++d) {
      if (values.Of(*next++) != buffer->dims[d]) return false;
    }
  }
  if ((end - next) % 2 != 0 || (end - next) / 2 != pairs) return false;
  for (; next < end; next += 2) {
    if (next[0] < 0 || next[0] >= operands || next[1] < 0 || next[1] >= results) return false;
    if (BufferOf(frame, next[0])->data != BufferOf(frame, operands + next[1])->data) return false;
  }
  return true;
}

// In hexadecimal.
struct Digests {
  char call[65], binary[65];
};

Digests DigestsOf(const void* launch, size_t launch_bytes, const Signature& signature, const uint8_t* binary,
                  size_t binary_size, const Numbers& forms = {}) {
  Digests digests;
  Sha256 of_binary, of_call;
  of_binary.Add(binary, binary_size);
  of_binary.Finish(digests.binary);
  of_call.Add(launch, launch_bytes);
  of_call.Add(signature.numbers, signature.size * sizeof(int64_t));
  of_call.Add(digests.binary, 64);
  if (forms.size > 0) of_call.Add(forms.numbers, forms.size * sizeof(int64_t));
  of_call.Finish(digests.call);
  return digests;
}

enum Permission { kRefused, kTrusted, kCompiledHere };  // kCompiledHere: by this process
typedef int PermitFunction(const char* digest);         // of a call -> Permission
PermitFunction* permit = nullptr;                       // nothing may run before it is set

// It may wait for the lock of the Python interpreter: the caller must hold no lock of its own.
Permission PermissionOf(const char* digest) {
  PermitFunction* function = __atomic_load_n(&permit, __ATOMIC_ACQUIRE);
  return function == nullptr ? kRefused : static_cast<Permission>(function(digest));
}

}  // namespace

extern "C" __attribute__((visibility("default"))) void ck_set_permit(PermitFunction* function) {
  __atomic_store_n(&permit, function, __ATOMIC_RELEASE);
}

#endif  // COCKTAIL_RUNTIME_TRUST_H
