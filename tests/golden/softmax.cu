// jax_cocktail program
#define CK_THREADS 128
#define CK_SCRATCH_BYTES 8192
#define CK_OPERANDS 1
#define CK_RESULTS 1
#define CK_MOST_UNITS 1
#define CK_RESIDENT_UNITS 1
#define CK_SHARED_BYTES 0
#define CK_OWN_BYTES 320
#define CK_RESIDENT_BYTES 0
#define CK_NOTHING_CROSSES 1
#include "cocktail_base.h"
#include "cocktail_units.h"
#include "cocktail_index.h"
#include "cocktail_arith.h"
#include "cocktail_block.h"
#include "cocktail_math.h"

template <bool RESIDENT>
CK_INLINE void ck_body(const void* const* operands, void* const* results,
                       u8* workspace, CkUnit* unit) {
  f32* const o0_f32 = (f32*)(unit->own + 0);
  f32* const o128_f32 = (f32*)(unit->own + 128);
  f32* const o192_f32 = (f32*)(unit->own + 192);
  const f32* const p0 = (const f32*)(operands[0]);
  f32* const r0 = (f32*)(results[0]);
  ck_copy(r0, p0, 128);
  for (i32 v1 = 0; v1 < 3; ++v1) {
    ck_block_barrier();
    {
      for (i32 first = 0; first < 4; first += 16) {
        const i32 mine = first + ck_lane() / 8;
        const i32 r = mine < 4 ? mine : 3;
        const i32 i0 = r;
        f32 a1 = -__builtin_inff();
        for (i32 i1 = ck_lane() % 8; i1 < 8; i1 += 8) {
          const f32 t2 = r0[8 * i0 + i1];
          a1 = ck_max(a1, t2);
        }
        a1 = ck_group_reduce<8, CkMax>(a1);
        if (ck_lane() % 8 == 0 && mine < 4) o128_f32[i0] = a1;
      }
    }
    ck_block_barrier();
    {
      for (i32 first = 0; first < 4; first += 16) {
        const i32 mine = first + ck_lane() / 8;
        const i32 r = mine < 4 ? mine : 3;
        const i32 i0 = r;
        f32 a3 = f32(0);
        for (i32 i1 = ck_lane() % 8; i1 < (mine < 4 ? 8 : 0); i1 += 8) {
          const f32 t4 = r0[8 * i0 + i1];
          const f32 t5 = o128_f32[i0];
          const f32 t6 = t4 - t5;
          const f32 t7 = ck_exp(t6);
          a3 = a3 + t7;
          o0_f32[8 * i0 + i1] = t7;
        }
        a3 = ck_group_reduce<8, CkSum>(a3);
        if (ck_lane() % 8 == 0 && mine < 4) o192_f32[i0] = a3;
      }
    }
    ck_block_barrier();
    {
      for (i32 l = ck_lane(); l < 32; l += 128) {
        const i32 i1 = l % 8;
        const i32 i0 = l / 8;
        const f32 t8 = o0_f32[8 * i0 + i1];
        const f32 t9 = o192_f32[i0];
        const f32 t10 = ck_div(t8, t9);
        r0[8 * i0 + i1] = t10;
      }
    }
  }
}
CK_ENTRIES
