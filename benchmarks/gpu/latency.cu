// Latencies inside a block, in clocks of its multiprocessor. Every probe is a chain of operations, each of
// which waits for the one before. Its text holds the chain in two lengths, so that the loop around it cancels
// out.
// What stands before this text defines the numbers of a program, and PROBE_<NAME> for each probe.
//
// operands[0]: i64 numbers: rounds, the number of the probe, a size, whether the chain is the long one.
// operands[1]: f32 numbers that the compiler does not know: 1, 0.5, 0.
// results[0]: u32: clocks in two words, then the word that the chain of each thread ends with.
// results[1]: memory for the probes that need some.
#include "cocktail_base.h"
#include "cocktail_elementary.h"
#include "cocktail_units.h"

enum : i32 { SHORT = 8, LONG = 24, LINE = 128 };

struct CkProbe {
  i64 rounds;
  i32 size;
  f32 one, half, zero;
  u8* memory;  // results[1]
  CkUnit* unit;
  u64 clocks;
  u32 end;
};

#if defined(CK_EMULATED)
CK_INLINE i32 ck_block_size() { return CK_THREADS; }
CK_INLINE u64 ck_clocks() { return ck_nanoseconds(); }
CK_INLINE void ck_use(u32) {}
CK_INLINE f32 ck_approximate_reciprocal(f32 x) { return 1.0f / x; }
CK_INLINE u64 ck_load_cached(const u64* at) { return *at; }
CK_INLINE void ck_bulk_begin(u64*) {}
CK_INLINE void ck_bulk_copy(u8* to, const u8* from, i32 bytes, u64*, u32) {
  for (i32 i = ck_lane(); i < bytes; i += CK_THREADS) to[i] = from[i];
  ck_block_barrier();
}
#else
CK_INLINE i32 ck_block_size() { return i32(blockDim.x); }
CK_INLINE u64 ck_clocks() { return u64(clock64()); }
// The value is there when the next clock is read.
CK_INLINE void ck_use(u32 x) { asm volatile("" ::"r"(x) : "memory"); }
CK_INLINE f32 ck_approximate_reciprocal(f32 x) {
  f32 y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
CK_INLINE u64 ck_load_cached(const u64* at) {
  u64 x;
  asm volatile("ld.global.ca.u64 %0, [%1];" : "=l"(x) : "l"(__cvta_generic_to_global(at)));
  return x;
}
// Bulk copies by one thread, and the wait of all threads for their bytes: sm_90.
CK_INLINE void ck_bulk_begin(u64* barrier) {
#if CK_HAS_CLUSTERS
  if (ck_lane() == 0) {
    asm volatile("mbarrier.init.shared.b64 [%0], 1;" ::"r"(ck_shared_address(barrier)) : "memory");
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
#else
  (void)barrier;
#endif
  ck_block_barrier();
}
CK_INLINE void ck_bulk_copy(u8* to, const u8* from, i32 bytes, u64* barrier, u32 phase) {
#if CK_HAS_CLUSTERS
  u32 at = ck_shared_address(barrier), done = 0;
  if (ck_lane() == 0) {
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(at), "r"(bytes) : "memory");
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
                     "r"(ck_shared_address(to)),
                 "l"(__cvta_generic_to_global(from)), "r"(bytes), "r"(at)
                 : "memory");
  }
  while (!done) {
    asm volatile("{.reg .pred p; mbarrier.try_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p;}"
                 : "=r"(done)
                 : "r"(at), "r"(phase)
                 : "memory");
  }
  ck_block_barrier();
#else
  (void)to, (void)from, (void)bytes, (void)barrier, (void)phase;
  ck_trap();
#endif
}
#endif

// Calls `step(k)` REPEAT times a round; `value` is what the chain has come to.
template <i32 REPEAT, class Step, class Value>
CK_INLINE void ck_run(CkProbe& p, Step step, Value value) {
  ck_use(value());
  ck_block_barrier();
  u64 start = ck_clocks();
  CK_NO_UNROLL for (i64 i = 0; i < p.rounds; ++i) {
#pragma unroll
    for (i32 k = 0; k < REPEAT; ++k) step(k);
  }
  p.end = value();
  ck_use(p.end);
  p.clocks = ck_clocks() - start;
}

#define PROBE(NAME)      \
  template <i32 REPEAT>  \
  CK_INLINE void NAME(CkProbe& p)
#define RUN(STEP, VALUE) ck_run<REPEAT>(p, [&](i32 k) { (void)k; STEP; }, [&] { return u32(VALUE); })

// ---- loads: chains of addresses ---------------------------------------------------------------------------

// Lines of memory that lead to each other, a power of two of them, all in one circle.
CK_INLINE void ck_link(CkProbe& p) {
  i32 lines = p.size / LINE, step = (lines / 8 * 5) | 1;
  for (i32 i = ck_lane(); i < lines; i += ck_block_size()) {
    *(u64*)(p.memory + i64(LINE) * i) = (u64)(p.memory + i64(LINE) * ((i + step) & (lines - 1)));
  }
  ck_block_barrier();
}

template <i32 REPEAT, class Read>
CK_INLINE void ck_follow(CkProbe& p, Read read) {
  ck_link(p);
  const u64* at = (const u64*)p.memory;
  RUN(at = (const u64*)read(at), ((const u8*)at - p.memory) / LINE);
}
PROBE(ck_near_load) {
  ck_follow<REPEAT>(p, [](const u64* at) { return ck_load_cached(at); });
}
PROBE(ck_far_load) {
  ck_follow<REPEAT>(p, [](const u64* at) { return ck_load_relaxed(at); });
}
PROBE(ck_far_acquire) {
  ck_follow<REPEAT>(p, [](const u64* at) { return ck_load_acquire(at); });
}

struct alignas(4) CkOne { u32 words[1]; };
struct alignas(8) CkTwo { u32 words[2]; };
struct alignas(16) CkFour { u32 words[4]; };

// In shared memory words are offsets; all words of a load are needed, so that it is as wide as it says.
template <i32 REPEAT, class Word>
CK_INLINE void ck_shared_load(CkProbe& p) {
  enum : i32 { WORDS = sizeof(Word) / 4 };
  u8* memory = ck_scratch();
  for (i32 i = ck_lane(); i < 32; i += ck_block_size()) {
    for (i32 k = 0; k < 4; ++k) ((u32*)(memory + 16 * i))[k] = u32(16 * ((i + 21) & 31));
  }
  ck_block_barrier();
  u32 at = 0;
  auto step = [&](i32) {
    Word word = *(const Word*)(memory + at);
    at = word.words[0];
    for (i32 k = 1; k < WORDS; ++k) at |= word.words[k];
  };
  ck_run<REPEAT>(p, step, [&] { return at / 16; });
}
PROBE(ck_shared_load_4) { ck_shared_load<REPEAT, CkOne>(p); }
PROBE(ck_shared_load_8) { ck_shared_load<REPEAT, CkTwo>(p); }
PROBE(ck_shared_load_16) { ck_shared_load<REPEAT, CkFour>(p); }

// ---- arithmetic -------------------------------------------------------------------------------------------

PROBE(ck_fused_add) {
  f32 x = p.zero;
  RUN(x = ck_fma(x, p.half, p.one), ck_bitcast<u32>(x));
}
PROBE(ck_division) {
  f32 x = p.one;
  RUN(x = p.one / x, ck_bitcast<u32>(x));
}
PROBE(ck_reciprocal) {
  f32 x = p.one;
  RUN(x = ck_approximate_reciprocal(x), ck_bitcast<u32>(x));
}
PROBE(ck_tanh_chain) {
  f32 x = p.one;
  RUN(x = ck_tanh(x + p.one), x > p.half);
}
PROBE(ck_logistic_chain) {
  f32 x = p.one;
  RUN(x = ck_logistic(x + p.one), x > p.half);
}
PROBE(ck_remainder) {
  u32 x = u32(p.size);
  RUN(x = u32(p.size) % (x | 4u), x);  // of 7: 3 and 0 in turn
}
PROBE(ck_rounding) {
  u32 x = ck_bitcast<u32>(p.one);
  RUN(x = ck_to_tf32(ck_bitcast<f32>(x)) ^ u32(p.size), x);
}

// ---- between threads --------------------------------------------------------------------------------------

PROBE(ck_block_barrier_chain) {
  RUN(ck_block_barrier(), 0);
}
PROBE(ck_shuffle) {
  u32 x = u32(ck_warp_lane());
  RUN(x = ck_word_from_partner(x, 1), x);
}
template <i32 REPEAT, i32 CHAINS>
CK_INLINE void ck_matrix(CkProbe& p) {
  f32 c[CHAINS][4] = {};
  u32 one = ck_to_tf32(p.one), a[4] = {one, one, one, one}, b[2] = {one, one};
  auto value = [&] {
    f32 sum = 0;
    for (i32 k = 0; k < CHAINS; ++k) sum += c[k][0];
    return u32(sum);
  };
  ck_run<REPEAT>(p, [&](i32 k) { ck_mma_tf32(c[k % CHAINS], a, b); }, value);
}
PROBE(ck_matrix_chain) { ck_matrix<REPEAT, 1>(p); }
PROBE(ck_matrix_rate) { ck_matrix<REPEAT, 8>(p); }

// ---- the way of control -----------------------------------------------------------------------------------

CK_NOINLINE u32 ck_called(u32 x) { return x * 3u + 1u; }
PROBE(ck_call) {
  u32 x = u32(p.size);
  RUN(x = ck_called(x), x);
}
// Turns of a loop that does one addition: that, a comparison and a taken branch.
PROBE(ck_loop_turn) {
  u32 x = 0;
  i32 turns = REPEAT * p.size;
  auto step = [&](i32) { CK_NO_UNROLL for (i32 i = 0; i < turns; ++i) x = x * 3u + u32(i); };
  ck_run<1>(p, step, [&] { return x; });
}

// ---- order in memory --------------------------------------------------------------------------------------

// Adds with release after p.size stores of each thread to lines of their own.
PROBE(ck_release) {
  u32* word = (u32*)p.memory;
  u32* lines = word + LINE / 4 * (1 + ck_lane());
  i32 stores = p.size, stride = LINE / 4 * ck_block_size();
  auto step = [&](i32 k) {
    CK_NO_UNROLL for (i32 i = 0; i < stores; ++i) ck_store_relaxed(lines + i64(stride) * i, u32(k));
    if (ck_lane() == 0) ck_add_release(word, 1u);
  };
  ck_run<REPEAT>(p, step, [] { return 0u; });
}

// ---- copies to shared memory ------------------------------------------------------------------------------

// p.size bytes, each time all of them there for all threads.
PROBE(ck_async_copies) {
  u8* to = ck_scratch();
  i32 bytes = p.size;
  auto step = [&](i32) {
    CK_NO_UNROLL for (i32 i = 16 * ck_lane(); i < bytes; i += 16 * ck_block_size()) {
      ck_async_copy<16>(to + i, p.memory + i);
    }
    ck_async_commit();
    ck_async_wait<0>();
    ck_block_barrier();
  };
  ck_run<REPEAT>(p, step, [&] { return u32(to[bytes - 1]); });
}
PROBE(ck_bulk_copies) {
  u8* to = ck_scratch();
  u64* barrier = (u64*)(to + CK_SCRATCH_BYTES - 16);
  ck_bulk_begin(barrier);
  u32 phase = 0;
  RUN((ck_bulk_copy(to, p.memory, p.size, barrier, phase), phase ^= 1), to[p.size - 1]);
}

template <i32 REPEAT>
CK_INLINE void ck_probe(CkProbe& p, i64 number) {
  switch (number) {
#define CASE(NAME, FUNCTION) \
  case PROBE_##NAME: return FUNCTION<REPEAT>(p);
    CASE(NEAR_LOAD, ck_near_load)
    CASE(FAR_LOAD, ck_far_load)
    CASE(FAR_ACQUIRE, ck_far_acquire)
    CASE(SHARED_LOAD_4, ck_shared_load_4)
    CASE(SHARED_LOAD_8, ck_shared_load_8)
    CASE(SHARED_LOAD_16, ck_shared_load_16)
    CASE(FUSED_ADD, ck_fused_add)
    CASE(DIVISION, ck_division)
    CASE(RECIPROCAL, ck_reciprocal)
    CASE(TANH, ck_tanh_chain)
    CASE(LOGISTIC, ck_logistic_chain)
    CASE(REMAINDER, ck_remainder)
    CASE(ROUNDING, ck_rounding)
    CASE(BLOCK_BARRIER, ck_block_barrier_chain)
    CASE(SHUFFLE, ck_shuffle)
    CASE(MATRIX, ck_matrix_chain)
    CASE(MATRIX_STEP, ck_matrix_rate)
    CASE(CALL, ck_call)
    CASE(LOOP_TURN, ck_loop_turn)
    CASE(RELEASE, ck_release)
    CASE(ASYNC_COPY, ck_async_copies)
    CASE(BULK_COPY, ck_bulk_copies)
  }
}

template <bool RESIDENT>
CK_INLINE void ck_body(const void* const* operands, void* const* results, u8*, CkUnit* unit) {
  const i64* numbers = (const i64*)operands[0];
  const f32* values = (const f32*)operands[1];
  CkProbe p = {numbers[0], i32(numbers[2]), values[0], values[1], values[2], (u8*)results[1], unit, 0, 0};
  if (numbers[3]) {
    ck_probe<LONG>(p, numbers[1]);
  } else {
    ck_probe<SHORT>(p, numbers[1]);
  }
  u32* found = (u32*)results[0];
  if (ck_lane() == 0) found[0] = u32(p.clocks), found[1] = u32(p.clocks >> 32);
  found[2 + ck_lane()] = p.end;
}
CK_ENTRIES
