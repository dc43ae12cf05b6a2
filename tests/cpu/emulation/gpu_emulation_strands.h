// Strands: stacks that one OS thread switches between, announced to the sanitizers. To the thread sanitizer
// each is a thread, and switching orders nothing.
#ifndef GPU_EMULATION_STRANDS_H
#define GPU_EMULATION_STRANDS_H

#include <stddef.h>
#include <stdint.h>

#if !defined(__x86_64__) || defined(CK_UCONTEXT)
#include <ucontext.h>
#endif

#if defined(CK_ASAN)
extern "C" void __sanitizer_start_switch_fiber(void** save, const void* bottom, size_t size);
extern "C" void __sanitizer_finish_switch_fiber(void* saved, const void** bottom, size_t* size);
#endif
#if defined(CK_TSAN)
extern "C" void* __tsan_get_current_fiber();
extern "C" void* __tsan_create_fiber(unsigned flags);
extern "C" void __tsan_destroy_fiber(void* fiber);
extern "C" void __tsan_switch_to_fiber(void* fiber, unsigned flags);
extern "C" void __tsan_acquire(void* at);
extern "C" void __tsan_release(void* at);
extern "C" void __tsan_set_fiber_name(void* fiber, const char* name);
#else
static inline void __tsan_acquire(void*) {}
static inline void __tsan_release(void*) {}
#endif

namespace ck_emulation {
namespace {

#if !defined(__x86_64__) || defined(CK_UCONTEXT)
typedef ucontext_t Context;
void change(Context* from, Context* to) { swapcontext(from, to); }
void prepare(Context* context, char* stack, size_t bytes, void (*entry)()) {
  getcontext(context);
  context->uc_stack.ss_sp = stack;
  context->uc_stack.ss_size = bytes;
  context->uc_link = nullptr;
  makecontext(context, entry, 0);
}
#else
typedef void* Context;  // the saved stack pointer; below it the registers that calls keep
asm(R"(
.text
.local ck_change_stack
.type ck_change_stack,@function
ck_change_stack:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq (%rsi), %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size ck_change_stack,.-ck_change_stack
)");
extern "C" void ck_change_stack(Context* from, Context* to);
void change(Context* from, Context* to) { ck_change_stack(from, to); }
void prepare(Context* context, char* stack, size_t bytes, void (*entry)()) {
  void** top = reinterpret_cast<void**>((reinterpret_cast<uintptr_t>(stack) + bytes) & ~uintptr_t(15));
  *--top = nullptr;  // where a return address would be: `entry` never returns
  *--top = reinterpret_cast<void*>(entry);
  for (int i = 0; i < 6; ++i) *--top = nullptr;
  *context = top;
}
#endif

struct Strand {
  Context context;
  const void* stack;
  size_t bytes;
  void* sanitizer;
};

// The strand that runs already.
void adopt(Strand* strand) {
  (void)strand;
#if defined(CK_TSAN)
  strand->sanitizer = __tsan_get_current_fiber();
#endif
}

// `entry` begins with begin_strand and never returns.
void make_strand(Strand* strand, char* stack, size_t bytes, void (*entry)(), const char* name) {
  prepare(&strand->context, stack, bytes, entry);
  strand->stack = stack;
  strand->bytes = bytes;
  (void)name;
#if defined(CK_TSAN)
  strand->sanitizer = __tsan_create_fiber(0);
  __tsan_set_fiber_name(strand->sanitizer, name);
#endif
}

void begin_strand(Strand* from) {
  (void)from;
#if defined(CK_ASAN)
  __sanitizer_finish_switch_fiber(nullptr, &from->stack, &from->bytes);
#endif
}

void discard(Strand* strand) {
  (void)strand;
#if defined(CK_TSAN)
  __tsan_destroy_fiber(strand->sanitizer);
#endif
}

void go(Strand* from, Strand* to) {
#if defined(CK_TSAN)
  __tsan_switch_to_fiber(to->sanitizer, 1);  // 1: without an order
#endif
#if defined(CK_ASAN)
  void* fake = nullptr;
  __sanitizer_start_switch_fiber(&fake, to->stack, to->bytes);
#endif
  change(&from->context, &to->context);
#if defined(CK_ASAN)
  __sanitizer_finish_switch_fiber(fake, nullptr, nullptr);
#endif
}

}  // namespace
}  // namespace ck_emulation

#endif  // GPU_EMULATION_STRANDS_H
