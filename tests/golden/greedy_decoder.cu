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
#define CK_NOTHING_CROSSES 1
#include "cocktail_base.h"
#include "cocktail_units.h"
#include "cocktail_index.h"
#include "cocktail_arith.h"
#include "cocktail_block.h"
#include "cocktail_math.h"
#include "cocktail_dot.h"

template <bool RESIDENT>
CK_INLINE void ck_body(const void* const* operands, void* const* results,
                       u8* workspace, CkUnit* unit) {
  f32* const o0_f32 = (f32*)(unit->own + 0);
  i32* const o128_i32 = (i32*)(unit->own + 128);
  f32* const o64_f32 = (f32*)(unit->own + 64);
  const f32* const p0 = (const f32*)(operands[0]);
  const f32* const p1 = (const f32*)(operands[1]);
  bool v10;
  bool v11;
  i32 v16;
  i32 v18;
  i32 v2;
  i32 v6;
  i32 v7;
  bool v8;
  v2 = *(const i32*)operands[2];
  CkDotHeld<f32, f32, f32, 1, 11, 16, 0, 1, 11, 1> k15;
  v6 = v2;
  v7 = i32(0);
  for (;;) {
    {
      const bool t1 = v6 != i32(0);
      v8 = t1;
      const bool t2 = v7 < i32(50);
      v10 = t2;
      const bool t3 = v8 & v10;
      v11 = t3;
    }
    if (!v11) break;
    const f32* const d12 = p0 + ck_clamp_index(v6, 10) * 16;
    {
      for (i32 i0 = ck_lane(); i0 < 16; i0 += 128) {
        const f32 t4 = d12[i0];
        const f32 t5 = ck_tanh(t4);
        o0_f32[i0] = t5;
      }
    }
    ck_block_barrier();
    {
      ck_dot_held<true>(ck_held<0, 1>(k15, o0_f32, p1, o64_f32));
    }
    ck_block_barrier();
    {
      {
        CkArg<true, f32> a6 = {ck_group_lane<32>()};
        #pragma unroll 1
        for (i32 base = 0; base < 32; base += 32) {
          const i32 i0 = base + ck_lane() % 32 < 10 ? base + ck_lane() % 32 : 10;
          const f32 x = o64_f32[i0];
          ck_arg_take(a6, x, i0);
        }
        i32 n7 = i32(ck_arg_position<32>(a6));
        if (ck_lane() == 0) o128_i32[0] = n7;
      }
      ck_block_barrier();
      v16 = o128_i32[0];
      ck_block_barrier();
    }
    {
      const i32 t8 = v7 + i32(1);
      v18 = t8;
    }
    v6 = v16;
    v7 = v18;
  }
  if (ck_lane() == 0) *(i32*)results[0] = v6;
  if (ck_lane() == 0) *(i32*)results[1] = v7;
}
CK_ENTRIES
