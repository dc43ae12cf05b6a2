// Measures the costs of a card, one with every launch. What stands before this text defines the numbers of a
// program, and MICRO_<NAME> for each cost. All results are checked for what they are, too.
//
// operands[0]: i64 numbers: rounds, the number of the cost, and what it asks for.
#include "cocktail_base.h"
#include "cocktail_units.h"

struct alignas(16) CkFour {
  f32 x, y, z, w;
};

CK_INLINE void ck_add(CkFour* sum, CkFour value) {
  sum->x += value.x, sum->y += value.y, sum->z += value.z, sum->w += value.w;
}
CK_INLINE f32 ck_total(CkFour sum) { return (sum.x + sum.y) + (sum.z + sum.w); }

struct CkMicro {
  const i64* numbers;
  const CkFour* data;  // operands[1]
  void* result;
  u8* workspace;
  CkUnit* unit;
  i64 rounds;
};

// ---- launch -----------------------------------------------------------------------------------------------

CK_INLINE void ck_micro_empty(const CkMicro& m) {
  if (m.rounds < 0 && ck_lane() == 0) ((u32*)m.result)[m.unit->index] = 1;
}

// ---- barriers: each unit counts how often its neighbour is late -------------------------------------------

CK_INLINE void ck_micro_barrier(const CkMicro& m) {
  CkUnit* unit = m.unit;
  CK_NO_UNROLL for (i64 i = 0; i < m.rounds; ++i) {
    ck_arrive(unit);
    ck_wait(unit);
  }
  if (ck_lane() == 0) ((u32*)m.result)[unit->index] = u32(m.rounds);
}

CK_INLINE void ck_micro_barrier_checked(const CkMicro& m) {
  CkUnit* unit = m.unit;
  u32* at = (u32*)m.workspace;  // a line of each unit
  i32 next = (unit->index + 1) % unit->count;
  u32 late = 0;
  if (ck_lane() == 0) at[32 * unit->index] = 0;
  CK_NO_UNROLL for (i64 i = 0; i < m.rounds; ++i) {
    if (ck_lane() == 0) at[32 * unit->index] = u32(i) + 1;
    ck_arrive(unit);
    ck_wait(unit);
    late += at[32 * next] != u32(i) + 1;
    ck_arrive(unit);
    ck_wait(unit);
  }
  if (ck_lane() == 0) ((u32*)m.result)[unit->index] = u32(m.rounds) - late;
}

CK_INLINE void ck_micro_cluster(const CkMicro& m) {
  CK_NO_UNROLL for (i64 i = 0; i < m.rounds; ++i) ck_cluster_barrier();
  if (ck_lane() == 0) ((u32*)m.result)[m.unit->index] = u32(m.rounds);
}

// ---- hops: units 0 and 1 answer each other; a round is two hops ------------------------------------------

CK_INLINE void ck_micro_flag(const CkMicro& m) {
  CkUnit* unit = m.unit;
  CK_NO_UNROLL for (i64 i = 1; i <= m.rounds; ++i) {
    if (unit->index == 0) ck_signal(unit, 0, u32(i));
    ck_await_signal(unit, unit->index == 0 ? 1 : 0, u32(i));
    if (unit->index == 1) ck_signal(unit, 1, u32(i));
  }
  if (ck_lane() == 0) ((u32*)m.result)[unit->index] = u32(m.rounds);
}

// numbers[2]: words that travel
CK_INLINE void ck_micro_tagged(const CkMicro& m) {
  CkUnit* unit = m.unit;
  i32 words = i32(m.numbers[2]), me = unit->index;
  u64* mine = ck_exchange(unit, me * words);
  u64* theirs = ck_exchange(unit, (1 - me) * words);
  u32* values = (u32*)ck_scratch();
  for (i32 i = ck_lane(); i < words; i += CK_THREADS) values[i] = u32(i);
  ck_block_barrier();
  CK_NO_UNROLL for (i64 i = 1; i <= m.rounds; ++i) {
    if (me == 0) ck_send_tagged(mine, words, 0, values, words, u32(i));
    ck_receive_tagged(unit, values, theirs, words, 0, words, u32(i));
    ck_block_barrier();
    if (me == 1) {
      for (i32 k = ck_lane(); k < words; k += CK_THREADS) values[k] += 1;
      ck_block_barrier();
      ck_send_tagged(mine, words, 0, values, words, u32(i));
    }
  }
  ck_block_barrier();
  for (i32 i = ck_lane(); i < words; i += CK_THREADS) ((u32*)m.result)[me * words + i] = values[i];
}

// Every unit sends its share of numbers[2] words and receives all of them: what a recurrent step needs.
CK_INLINE void ck_micro_gather(const CkMicro& m) {
  CkUnit* unit = m.unit;
  i32 words = i32(m.numbers[2]), share = words / unit->count, first = share * unit->index;
  u64* exchange = ck_exchange(unit, 0);
  u32* values = (u32*)ck_scratch();
  for (i32 i = ck_lane(); i < words; i += CK_THREADS) values[i] = u32(i);
  ck_block_barrier();
  CK_NO_UNROLL for (i64 i = 1; i <= m.rounds; ++i) {
    for (i32 k = ck_lane(); k < share; k += CK_THREADS) values[first + k] += 1;
    ck_block_barrier();
    ck_send_tagged(exchange, words, first, values + first, share, u32(i));
    ck_block_barrier();
    ck_receive_tagged(unit, values, exchange, words, 0, share * unit->count, u32(i));
    ck_block_barrier();
  }
  for (i32 i = ck_lane(); i < share; i += CK_THREADS) ((u32*)m.result)[first + i] = values[first + i];
}

// ---- rates: sums of what is read --------------------------------------------------------------------------

// numbers[2]: groups of 16 bytes, a multiple of units * CK_THREADS * 4. In every round a unit reads another
// slice, so that nothing is found in its first-level cache.
CK_INLINE void ck_micro_read(const CkMicro& m) {
  CkUnit* unit = m.unit;
  i64 slice = m.numbers[2] / unit->count;
  CkFour sum[4] = {};
  CK_NO_UNROLL for (i64 round = 0; round < m.rounds; ++round) {
    const CkFour* from = m.data + slice * ((unit->index + round) % unit->count) + ck_lane();
    CK_NO_UNROLL for (i64 i = 0; i < slice; i += 4 * CK_THREADS) {
#pragma unroll
      for (i32 k = 0; k < 4; ++k) ck_add(&sum[k], from[i + k * CK_THREADS]);
    }
  }
  for (i32 k = 1; k < 4; ++k) ck_add(&sum[0], sum[k]);
  ((f32*)m.result)[unit->index * CK_THREADS + ck_lane()] = ck_total(sum[0]);
}

// Reads the scratch memory, a multiple of 64 * CK_THREADS bytes, from another place in every round.
CK_INLINE void ck_micro_shared(const CkMicro& m) {
  enum : i32 { FOURS = CK_SCRATCH_BYTES / 16 };
  static_assert((FOURS & (FOURS - 1)) == 0, "scratch: a power of two");
  CkFour* memory = (CkFour*)ck_scratch();
  for (i32 i = ck_lane(); i < FOURS; i += CK_THREADS) memory[i] = m.data[i];
  ck_block_barrier();
  CkFour sum[4] = {};
  CK_NO_UNROLL for (i64 round = 0; round < m.rounds; ++round) {
    CK_NO_UNROLL for (i32 i = 0; i < FOURS; i += 4 * CK_THREADS) {
#pragma unroll
      for (i32 k = 0; k < 4; ++k) {
        ck_add(&sum[k], memory[(i + k * CK_THREADS + ck_lane() + i32(round)) & (FOURS - 1)]);
      }
    }
  }
  for (i32 k = 1; k < 4; ++k) ck_add(&sum[0], sum[k]);
  ((f32*)m.result)[m.unit->index * CK_THREADS + ck_lane()] = ck_total(sum[0]);
}

// Eight chains of fused multiply-adds a thread, sixteen of each a round.
CK_INLINE void ck_micro_fma(const CkMicro& m) {
  f32 chain[8];
  f32 factor = m.data[0].x, term = m.data[0].y;
  for (i32 k = 0; k < 8; ++k) chain[k] = f32(k);
  CK_NO_UNROLL for (i64 round = 0; round < m.rounds; ++round) {
#pragma unroll
    for (i32 step = 0; step < 16; ++step) {
#pragma unroll
      for (i32 k = 0; k < 8; ++k) chain[k] = ck_fma(chain[k], factor, term);
    }
  }
  f32 sum = 0;
  for (i32 k = 0; k < 8; ++k) sum += chain[k];
  ((f32*)m.result)[m.unit->index * CK_THREADS + ck_lane()] = sum;
}

template <bool RESIDENT>
CK_INLINE void ck_body(const void* const* operands, void* const* results, u8* workspace, CkUnit* unit) {
  const i64* numbers = (const i64*)operands[0];
  CkMicro m = {numbers, (const CkFour*)operands[1], results[0], workspace, unit, numbers[0]};
  switch (numbers[1]) {
    case MICRO_EMPTY: return ck_micro_empty(m);
    case MICRO_BARRIER: return ck_micro_barrier(m);
    case MICRO_BARRIER_CHECKED: return ck_micro_barrier_checked(m);
    case MICRO_CLUSTER: return ck_micro_cluster(m);
    case MICRO_FLAG: return ck_micro_flag(m);
    case MICRO_TAGGED: return ck_micro_tagged(m);
    case MICRO_GATHER: return ck_micro_gather(m);
    case MICRO_READ: return ck_micro_read(m);
    case MICRO_SHARED: return ck_micro_shared(m);
    case MICRO_FMA: return ck_micro_fma(m);
  }
}
CK_ENTRIES
