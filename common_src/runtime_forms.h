// Numbers of a call that follow from the shapes of its operands: its module has symbolic sizes. They come as
// forms (jax_cocktail/utask/forms.py writes them), which every call evaluates.
//
// The attribute `forms` has the number of forms, the number of guards, the forms, and the guards. A form is
// the number of its terms; then of each term the coefficient, the number of factors, and the factors. A
// factor is 0, an operand and an axis: this axis' length; or a divisor and a form: the floor of their
// quotient. A guard is a comparison (enum Comparison) and the numbers of two forms. In `launch` and
// `signature`, -2 - k means form k.
#ifndef COCKTAIL_RUNTIME_FORMS_H
#define COCKTAIL_RUNTIME_FORMS_H

#include <stdint.h>

#include "xla/ffi/api/c_api.h"

namespace {

// The numbers of an attribute.
struct Numbers {
  const int64_t* numbers;
  size_t size;
};

enum Comparison { kEqual, kDiffers, kLess, kAtMost };

// The forms of a call, evaluated. Without forms, a number is what it says.
struct Values {
  const int64_t* values;
  int64_t count;

  int64_t Of(int64_t number) const {
    return number <= -2 && -2 - number < count ? values[-2 - number] : number;
  }
};

class FormReader {
 public:
  FormReader(const Numbers& code, const XLA_FFI_CallFrame* frame)
      : next_(code.numbers), end_(code.numbers + code.size), frame_(frame) {}

  // Evaluates all forms into `values`, which has room for `count`. False if a guard does not hold, or if the
  // forms are damaged.
  bool Evaluate(int64_t* values, int64_t count) {
    if (Take() != count) return false;
    int64_t guards = Take();
    for (int64_t k = 0; k < count; ++k) values[k] = Form(0);
    for (int64_t k = 0; k < guards && sound_; ++k) {
      int64_t how = Take(), left = Take(), right = Take();
      if (left < 0 || left >= count || right < 0 || right >= count) return false;
      if (!Holds(how, values[left], values[right])) return false;
    }
    return sound_ && next_ == end_;
  }

 private:
  static bool Holds(int64_t how, int64_t left, int64_t right) {
    switch (how) {
      case kEqual: return left == right;
      case kDiffers: return left != right;
      case kLess: return left < right;
      case kAtMost: return left <= right;
    }
    return false;
  }

  int64_t Take() {
    if (next_ == end_) sound_ = false;
    return sound_ ? *next_++ : 0;
  }

  int64_t Form(int depth) {
    uint64_t sum = 0;
    if (depth > kMostDepth) sound_ = false;
    for (int64_t terms = Take(); terms > 0 && sound_; --terms) {
      uint64_t product = uint64_t(Take());
      for (int64_t factors = Take(); factors > 0 && sound_; --factors) product *= uint64_t(Factor(depth));
      sum += product;
    }
    return int64_t(sum);
  }

  int64_t Factor(int depth) {
    int64_t divisor = Take();
    if (divisor == 0) {
      int64_t operand = Take();
      return Length(operand, Take());
    }
    int64_t dividend = Form(depth + 1);
    if (divisor < 0) sound_ = false;
    if (!sound_) return 0;
    return dividend / divisor - (dividend % divisor < 0);
  }

  int64_t Length(int64_t operand, int64_t axis) {
    if (operand < 0 || operand >= frame_->args.size) sound_ = false;
    if (!sound_) return 0;
    auto* buffer = static_cast<const XLA_FFI_Buffer*>(frame_->args.args[operand]);
    if (axis < 0 || axis >= buffer->rank) sound_ = false;
    return sound_ ? buffer->dims[axis] : 0;
  }

  static constexpr int kMostDepth = 16;
  const int64_t* next_;
  const int64_t* end_;
  const XLA_FFI_CallFrame* frame_;
  bool sound_ = true;
};

}  // namespace

#endif  // COCKTAIL_RUNTIME_FORMS_H
