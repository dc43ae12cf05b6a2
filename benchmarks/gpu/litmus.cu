// Litmus tests of the synchronisation between units: short exchanges, repeated many times, whose forbidden
// outcomes are counted. litmus.py says why an outcome is forbidden.
// Before this text stands litmus_common.cuh, and before that the numbers of a program, LITMUS_<NAME> for each
// test, and the sizes LITMUS_COMMON_BYTES and LITMUS_AREA_BYTES.
//
// Trials count from 1. The roles of a trial rotate among the units of a group, so that every unit plays each
// of them. A unit that will read plain words first reads them in vain, and synchronises only once before it
// reads them again: a line that stays in its first-level cache would be noticed.
//
// operands[0]: i64 numbers: rounds, the number of the test.
// operands[1]: f32 weights, HELD_K * HELD_N + CK_MOST_UNITS of them: ck_weight.
// results[0]: u32 [units, 4]: trials that this unit judged; words that were too old; words that were too new;
// what the test merely observes.
// results[1]: zeros: CkCommon, then a CkArea of each unit.

// ---- message passing --------------------------------------------------------------------------------------

enum CkBy : i32 { BY_BARRIER, BY_SIGNAL, BY_WORDS };

CK_INLINE void ck_send_words(CkArea* mine, u32 trial, u32 step) {
  u32* values = (u32*)ck_scratch();
  for (i32 i = ck_lane(); i < WORDS; i += CK_THREADS) values[i] = ck_value(trial, i);
  ck_block_barrier();
  ck_send_tagged(mine->words, WORDS, 0, values, WORDS, step);
}
// Receives them, and returns how many of the thread's words are not those of the trial.
CK_INLINE u32 ck_receive_words(CkUnit* unit, const u64* words, u32 trial, u32 step) {
  u32* values = (u32*)ck_scratch();
  u32 wrong = 0;
  ck_receive_tagged(unit, values, words, WORDS, 0, WORDS, step);
  ck_block_barrier();
  for (i32 i = ck_lane(); i < WORDS; i += CK_THREADS) wrong += values[i] != ck_value(trial, i);
  return wrong;
}

template <CkBy BY>
CK_INLINE void ck_write_message(CkLitmus& t, i32 partner, u32 i) {
  CkUnit* unit = t.unit;
  CkArea* mine = t.areas + unit->index;
  ck_await_signal(unit, partner, i);  // it has read what is overwritten now
  ck_stagger(t, i);
  if constexpr (BY == BY_WORDS) {
    for (i32 k = ck_lane(); k < PAYLOAD; k += CK_THREADS) ck_store_weak(mine->beside + k, ck_value(i, k));
    ck_send_words(mine, i, (i + 1) / 2);
  } else {
    ck_put(mine->payload, i);
    if constexpr (BY == BY_SIGNAL) ck_signal(unit, unit->index, i);
    if constexpr (BY == BY_BARRIER) ck_meet(unit);
  }
}

template <CkBy BY>
CK_INLINE void ck_read_message(CkLitmus& t, i32 partner, u32 i) {
  CkUnit* unit = t.unit;
  const CkArea* theirs = t.areas + partner;
  if constexpr (BY == BY_WORDS) {
    t.early += ck_wrong_beside(theirs->beside, ck_before(i, 2));
  } else {
    t.early += ck_wrong(theirs->payload, ck_before(i, 2));
  }
  ck_signal(unit, unit->index, i);
  ck_stagger(t, i);
  if constexpr (BY == BY_WORDS) {
    t.stale += ck_receive_words(unit, theirs->words, i, (i + 1) / 2);
    t.seen += ck_wrong_beside(theirs->beside, i);
  } else {
    if constexpr (BY == BY_SIGNAL) ck_await_signal(unit, partner, i);
    if constexpr (BY == BY_BARRIER) ck_meet(unit);
    t.stale += ck_wrong(theirs->payload, i);
  }
  t.trials += ck_lane() == 0;
}

template <CkBy BY>
CK_INLINE void ck_message(CkLitmus& t) {
  ck_trials<2, BY == BY_BARRIER>(t, [&](u32 i) {
    const i32 role = ck_role(t, 2, i), partner = ck_member(t, 2, 1 - role, i);
    role == 0 ? ck_write_message<BY>(t, partner, i) : ck_read_message<BY>(t, partner, i);
  });
}

// All units send tagged words to all, and nothing else keeps them in step.
CK_INLINE void ck_exchange_of_all(CkLitmus& t) {
  CkUnit* unit = t.unit;
  const i32 words = EACH * unit->count, first = EACH * unit->index;
  u32* all = (u32*)ck_scratch();
  u32* mine = all + EACH * CK_MOST_UNITS;
  ck_trials<1, false>(t, [&](u32 i) {
    if (ck_lane() < EACH) mine[ck_lane()] = ck_value(i, first + ck_lane());
    ck_block_barrier();
    ck_stagger(t, i);
    ck_send_tagged(t.common->exchange, words, first, mine, EACH, i);
    ck_receive_tagged(unit, all, t.common->exchange, words, 0, words, i);
    ck_block_barrier();
    for (i32 k = ck_lane(); k < words; k += CK_THREADS) t.stale += all[k] != ck_value(i, k);
    t.trials += ck_lane() == 0;
  });
}

// ---- store buffering --------------------------------------------------------------------------------------

// First without a fence, which is observed, then across the barrier. A flag is two trials and a bit.
CK_INLINE void ck_store_buffering(CkLitmus& t) {
  CkUnit* unit = t.unit;
  ck_trials<2, true>(t, [&](u32 i) {
    CkArea* mine = t.areas + unit->index;
    CkArea* theirs = t.areas + (unit->index ^ 1);
    const i32 half = i32(i & 1), row = half * CK_THREADS, at = (ck_lane() + SHIFT) % CK_THREADS;
    u32 old = 0;
    ck_stagger(t, i, STAGGER / 4);
    if (ck_lane() == 0) {
      ck_store_relaxed(&mine->word.value, i);
      old = ck_load_relaxed(&theirs->word.value) != i;
      mine->flags[half].value = 2 * i + old;
    }
    mine->payload[row + ck_lane()] = ck_value(i, ck_lane());
    ck_meet(unit);
    t.stale += theirs->payload[row + at] != ck_value(i, at);
    if (ck_lane() == 0) {
      const u32 flag = theirs->flags[half].value;
      t.stale += flag / 2 != i;
      t.seen += unit->index % 2 == 0 && flag == 2 * i + 1 && old;
      t.trials += 1;
    }
  });
}

// ---- independent reads of independent writes --------------------------------------------------------------

// Roles 0 and 1 signal; 2 and 3 await one of the signals and look at the other.
CK_INLINE void ck_independent_signals(CkLitmus& t) {
  CkUnit* unit = t.unit;
  ck_trials<4, true>(t, [&](u32 i) {
    const i32 role = ck_role(t, 4, i), half = i32(i & 1);
    const i32 first = ck_member(t, 4, role - 2, i), second = ck_member(t, 4, 3 - role, i);
    const CkLine* signals = unit->header->signals;
    u32 old = 0;
    ck_stagger(t, i, STAGGER / 4);
    if (role < 2) {
      ck_signal(unit, unit->index, i);
    } else {
      ck_await_signal(unit, first, i);
      if (ck_lane() == 0) {
        old = ck_look(&signals[second].value) != i;
        t.areas[unit->index].flags[half].value = 2 * i + old;
      }
    }
    ck_meet(unit);
    if (role >= 2 && ck_lane() == 0) {
      const u32 flag = t.areas[ck_member(t, 4, 5 - role, i)].flags[half].value;
      t.stale += flag / 2 != i;
      t.stale += i32(ck_load_relaxed(&signals[first].value) - i) < 0;
      t.stale += i32(ck_load_relaxed(&signals[second].value) - i) < 0;
      t.seen += role == 2 && flag == 2 * i + 1 && old;
      t.trials += 1;
    }
  });
}

// Roles 0 and 1 write between the halves of the barrier; 2 and 3 read one word before it and one behind it.
CK_INLINE void ck_independent_barrier(CkLitmus& t) {
  CkUnit* unit = t.unit;
  ck_trials<4, true>(t, [&](u32 i) {
    const i32 role = ck_role(t, 4, i), half = i32(i & 1);
    CkArea* mine = t.areas + unit->index;
    if (role < 2) {
      ck_arrive(unit);
      ck_stagger(t, i);
      if (ck_lane() == 0) ck_store_relaxed(&mine->word.value, i);
      ck_wait(unit);
      return;
    }
    const u32* first = &t.areas[ck_member(t, 4, role - 2, i)].word.value;
    const u32* second = &t.areas[ck_member(t, 4, 3 - role, i)].word.value;
    u32 renewed = 0;
    ck_stagger(t, i);
    if (ck_lane() == 0) {
      renewed = ck_look(first) == i;
      mine->flags[half].value = 2 * i + renewed;
    }
    ck_meet(unit);
    if (ck_lane() == 0) {
      const bool old = i32(ck_load_relaxed(second) - i) < 0;  // a writer may be one trial ahead
      const u32 flag = t.areas[ck_member(t, 4, 5 - role, i)].flags[half].value;
      t.stale += flag / 2 != i;
      t.stale += flag == 2 * i + 1 && old;
      t.seen += renewed;
      t.trials += 1;
    }
  });
}

// ---- transitivity -----------------------------------------------------------------------------------------

// The number of the thread's words in an area that are not those of a trial.
template <bool WORDS_FIRST>
CK_INLINE u32 ck_chain_wrong(const CkArea* area, u32 trial, u32 step) {
  if constexpr (!WORDS_FIRST) return ck_wrong(area->payload, trial);
  const u64* words = area->words + (step & 1u) * WORDS;
  u32 wrong = 0;
  for (i32 k = ck_lane(); k < WORDS; k += CK_THREADS) {
    wrong += ck_load_relaxed(words + k) != (u64(step) << 32 | ck_value(trial, k));
  }
  return wrong;
}

// Role 0 tells role 1, which tells role 2, which reads what role 0 wrote. WORDS_FIRST: role 0 tells by the
// tagged words themselves, which release nothing.
template <bool WORDS_FIRST>
CK_INLINE void ck_chain(CkLitmus& t) {
  CkUnit* unit = t.unit;
  ck_trials<3, false>(t, [&](u32 i) {
    const i32 role = ck_role(t, 3, i), first = ck_member(t, 3, 0, i), second = ck_member(t, 3, 1, i);
    const i32 ready = CK_MOST_UNITS + ck_member(t, 3, 2, i);  // its signal that it has read in vain
    const u32 step = (i + 2) / 3;
    CkArea* area = t.areas + first;
    if (role == 0) {
      ck_await_signal(unit, ready, i);
      ck_stagger(t, i);
      if constexpr (WORDS_FIRST) return ck_send_words(area, i, step);
      ck_put(area->payload, i);
      ck_signal(unit, unit->index, i);
    } else if (role == 1) {
      if constexpr (WORDS_FIRST) t.stale += ck_receive_words(unit, area->words, i, step);
      if constexpr (!WORDS_FIRST) ck_await_signal(unit, first, i);
      ck_signal(unit, unit->index, i);
    } else {
      ck_stagger(t, i);
      const u32 before = ck_before(i, WORDS_FIRST ? 6 : 3);  // words are sent to two places in turn
      t.early += ck_chain_wrong<WORDS_FIRST>(area, before, ck_before(step, 2));
      ck_signal(unit, ready, i);
      ck_await_signal(unit, second, i);
      t.stale += ck_chain_wrong<WORDS_FIRST>(area, i, step);
      t.trials += ck_lane() == 0;
    }
  });
}

// ---- early loads, and what stays over barriers ------------------------------------------------------------

CK_INLINE f32 ck_weight(i32 i) { return f32(u32(i) * 7u % 11u); }

// As codegen/early.py does it: a load stands behind an earlier barrier than its use, before it only where
// nobody writes.
CK_INLINE void ck_early_loads(CkLitmus& t) {
  CkUnit* unit = t.unit;
  u32* scratch = (u32*)ck_scratch();
  const i32 at = (ck_lane() + SHIFT) % CK_THREADS;
  ck_trials<1, true>(t, [&](u32 i) {
    const i32 row = i32(i & 1) * CK_THREADS, place = i32((u32(ck_lane()) + i) % (HELD_K * HELD_N));
    const u32* theirs = t.areas[(unit->index + 1) % unit->count].payload + row;
    t.areas[unit->index].payload[row + ck_lane()] = ck_value(i, ck_lane());
    ck_stagger(t, i);
    ck_arrive(unit);
    const f32 constant = t.weights[place];
    ck_wait(unit);
    const u32 rewritten = theirs[at];
    scratch[ck_lane()] = ck_value(i, ck_lane());
    ck_block_barrier();
    t.stale += scratch[at] != ck_value(i, at);
    ck_block_barrier();
    t.stale += rewritten != ck_value(i, at);
    t.stale += constant != ck_weight(place);
    t.trials += ck_lane() == 0;
  });
}

CK_INLINE i32 ck_element(u32 trial, i32 k) { return i32((trial + 3u * u32(k)) % 8u); }

// A matrix in registers and words in shared memory, while all units renew the vector and the scratch memory.
CK_INLINE void ck_resident_values(CkLitmus& t) {
  enum : i32 { KEPT_AT = HELD_N };  // behind the products
  CkUnit* unit = t.unit;
  CkDotHeld<f32, f32, f32, 1, HELD_N, HELD_K, HELD_K, 1, HELD_N, 1> held;
  f32* products = (f32*)ck_scratch();
  f32* kept = products + KEPT_AT;
  const f32* matrix = t.weights + unit->index;
  kept[ck_lane()] = matrix[ck_lane()];
  ck_block_barrier();
  ck_trials<1, true>(t, [&](u32 i) {
    f32* vector = t.common->vector[i & 1];
    for (i32 k = ck_lane(); k < HELD_K; k += CK_THREADS) {
      if (k % unit->count == unit->index) vector[k] = f32(ck_element(i, k));
    }
    ck_stagger(t, i);
    ck_meet(unit);
    ck_dot_held(ck_held<HELD_N, 1>(held, (const f32*)vector, matrix, products));
    ck_block_barrier();
    for (i32 n = ck_lane(); n < HELD_N; n += CK_THREADS) {
      i32 sum = 0;
      CK_NO_UNROLL for (i32 k = 0; k < HELD_K; ++k) {
        sum += ck_element(i, k) * i32(ck_weight(unit->index + k * HELD_N + n));
      }
      t.stale += products[n] != f32(sum);
    }
    const i32 at = (ck_lane() + SHIFT) % CK_THREADS;
    t.stale += kept[at] != ck_weight(unit->index + at);
    t.trials += ck_lane() == 0;
    ck_block_barrier();
  });
}

// ---- clusters ---------------------------------------------------------------------------------------------

// In the shared memory of a block.
struct CkNear {
  u32 inbox[PAYLOAD];  // written by the partner
  u32 shelf[PAYLOAD];  // read by the partner
  u64 words[2 * WORDS];
  u32 values[WORDS];
  u32 ready;  // the partner's last trial in which it has read in vain
};
static_assert(sizeof(CkNear) <= CK_SCRATCH_BYTES, "the shared memory of a test");
static_assert(4 * EACH * (CK_MOST_UNITS + 1) <= CK_SCRATCH_BYTES, "an exchange of all units");

CK_INLINE void ck_write_near(CkLitmus& t, CkNear* near, i32 partner, u32 i) {
  const u32 step = (i + 1) / 2;
  if (ck_lane() == 0) {
    ck_poll<CK_CLUSTER>(&near->ready, [=](u32 seen) { return i32(seen - i) >= 0; },
                        CkWatch{nullptr, i, "a reader"});
  }
  ck_block_barrier();
  ck_stagger(t, i);
  ck_put(t.areas[t.unit->index].payload, i);
  ck_put(near->shelf, i);
  ck_put(ck_remote(near->inbox, partner), i);
  u64* words = near->words + (step & 1u) * WORDS;
  for (i32 k = ck_lane(); k < WORDS; k += CK_THREADS) {
    ck_store_relaxed(ck_word_copy(t.unit, words + k, partner), u64(step) << 32 | ck_value(i, k));
  }
  ck_meet(t.unit);
}

CK_INLINE void ck_read_near(CkLitmus& t, CkNear* near, i32 partner, u32 i) {
  const u32 before = ck_before(i, 2), step = (i + 1) / 2;
  const u32* payload = t.areas[t.unit->index - ck_cluster_rank() + partner].payload;
  const u32* shelf = ck_remote(near->shelf, partner);
  t.early += ck_wrong(payload, before) + ck_wrong(shelf, before) + ck_wrong(near->inbox, before);
  ck_release_barrier();
  if (ck_lane() == 0) ck_store_release<CK_CLUSTER>(ck_remote(&near->ready, partner), i);
  ck_stagger(t, i);
  ck_receive_tagged(t.unit, near->values, near->words, WORDS, 0, WORDS, step);
  ck_meet(t.unit);
  t.stale += ck_wrong(payload, i) + ck_wrong(shelf, i) + ck_wrong(near->inbox, i);
  for (i32 k = ck_lane(); k < WORDS; k += CK_THREADS) t.stale += near->values[k] != ck_value(i, k);
  t.trials += ck_lane() == 0;
}

// The launch is of clusters, whose blocks meet by their barrier in hardware.
CK_INLINE void ck_message_in_cluster(CkLitmus& t) {
  t.unit->cluster = true;
  CkNear* near = (CkNear*)ck_scratch();
  for (i32 k = ck_lane(); k < i32(sizeof(CkNear) / 4); k += CK_THREADS) ((u32*)near)[k] = 0;
  ck_cluster_barrier();
  const i32 rank = ck_cluster_rank(), partner = ck_cluster_size() - 1 - rank;
  CK_NO_UNROLL for (u32 i = 1; i <= t.rounds; ++i) {
    (u32(rank) ^ i) & 1 ? ck_read_near(t, near, partner, i) : ck_write_near(t, near, partner, i);
  }
  ck_cluster_barrier();  // nobody reads the memory of a block that has ended
}

// ---- which test -------------------------------------------------------------------------------------------

CK_INLINE void ck_litmus(CkLitmus& t, i64 number) {
  switch (number) {
#define CASE(NAME, FUNCTION) \
  case LITMUS_##NAME: return FUNCTION(t);
    CASE(MESSAGE_BARRIER, ck_message<BY_BARRIER>)
    CASE(MESSAGE_SIGNAL, ck_message<BY_SIGNAL>)
    CASE(MESSAGE_WORDS, ck_message<BY_WORDS>)
    CASE(EXCHANGE, ck_exchange_of_all)
    CASE(STORE_BUFFERING, ck_store_buffering)
    CASE(INDEPENDENT_SIGNALS, ck_independent_signals)
    CASE(INDEPENDENT_BARRIER, ck_independent_barrier)
    CASE(CHAIN_SIGNALS, ck_chain<false>)
    CASE(CHAIN_WORDS, ck_chain<true>)
    CASE(EARLY_LOADS, ck_early_loads)
    CASE(RESIDENT, ck_resident_values)
    CASE(CLUSTER, ck_message_in_cluster)
  }
}

template <bool RESIDENT>
CK_INLINE void ck_body(const void* const* operands, void* const* results, u8*, CkUnit* unit) {
  const i64* numbers = (const i64*)operands[0];
  CkCommon* common = (CkCommon*)results[1];
  CkLitmus t = {unit, common, (CkArea*)(common + 1), (const f32*)operands[1], u32(numbers[0]), 0, 0, 0, 0};
  ck_litmus(t, numbers[1]);
  u32* counts = (u32*)results[0] + 4 * unit->index;
  const u32 found[4] = {t.trials, t.stale, t.early, t.seen};
  for (i32 i = 0; i < 4; ++i) {
    if (found[i]) ck_add_release(counts + i, found[i]);
  }
}
CK_ENTRIES
