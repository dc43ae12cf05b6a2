// jax_cocktail program
#define CK_THREADS 128
#define CK_SCRATCH_BYTES 8192
#define CK_OPERANDS 3
#define CK_RESULTS 2
#define CK_MOST_UNITS 1
#define CK_RESIDENT_UNITS 1
#define CK_SHARED_BYTES 0
#define CK_OWN_BYTES 192
#define CK_RESIDENT_BYTES 0
#define CK_SIZES 1
#define CK_NOTHING_CROSSES 1
#include "cocktail_base.h"
#include "cocktail_units.h"
#include "cocktail_index.h"
#include "cocktail_arith.h"
#include "cocktail_math.h"
#include "cocktail_dot.h"

template <bool RESIDENT>
CK_INLINE void ck_body(const void* const* operands, void* const* results,
                       u8* workspace, CkUnit* unit) {
  const i32 size0 = i32(unit->sizes[0]);
  CK_ASSUME(size0 >= 9);
  f32* const o0_f32 = (f32*)(unit->own + 0);
  const f32* const p0 = (const f32*)(operands[0]);
  f32* const r0 = (f32*)(results[0]);
  f32* const r1 = (f32*)(results[1]);
  CkDotHeld<f32, f32, f32, 1, 32, 8, 0, 1, 32, 1> k6;
  for (i32 v3 = 0; v3 < size0; ++v3) {
    ck_block_barrier();
    f32 e15;
    {
      if constexpr (RESIDENT) {
        for (i32 i0 = ck_lane(); i0 < 8; i0 += 128) {
          e15 = r1[i0];
        }
      }
    }
    {
      ck_dot_held(ck_held<0, 1>(k6, r0, p0, o0_f32));
    }
    ck_block_barrier();
    {
      for (i32 i0 = ck_lane(); i0 < 8; i0 += 128) {
        const f32 t1 = o0_f32[i0 + 8];
        const f32 t2 = ck_logistic(t1);
        const f32 t3 = (RESIDENT) ? e15 : r1[i0];
        const f32 t4 = t2 * t3;
        const f32 t5 = o0_f32[i0];
        const f32 t6 = ck_logistic(t5);
        const f32 t7 = o0_f32[i0 + 16];
        const f32 t8 = ck_tanh(t7);
        const f32 t9 = t6 * t8;
        const f32 t10 = t4 + t9;
        const f32 t11 = o0_f32[i0 + 24];
        const f32 t12 = ck_logistic(t11);
        const f32 t13 = ck_tanh(t10);
        const f32 t14 = t12 * t13;
        r1[i0] = t10;
        r0[i0] = t14;
      }
    }
  }
}
CK_ENTRIES
