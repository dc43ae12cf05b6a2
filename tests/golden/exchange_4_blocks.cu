// jax_cocktail program
#define CK_THREADS 128
#define CK_SCRATCH_BYTES 8192
#define CK_OPERANDS 3
#define CK_RESULTS 2
#define CK_MOST_UNITS 4
#define CK_RESIDENT_UNITS 4
#define CK_SHARED_BYTES 1067008
#define CK_OWN_BYTES 2368
#define CK_RESIDENT_BYTES 256
#define CK_TAGGED_WORDS 256
#include "cocktail_base.h"
#include "cocktail_units.h"
#include "cocktail_index.h"
#include "cocktail_arith.h"
#include "cocktail_block.h"
#include "cocktail_math.h"
#include "cocktail_dot.h"
#include "cocktail_program.h"
#include "cocktail_exchange.h"

template <bool RESIDENT>
CK_INLINE void ck_body(const void* const* operands, void* const* results,
                       u8* workspace, CkUnit* unit) {
  f32* const o0_f32 = (f32*)(unit->own + 0);
  f32* const o1024_f32 = (f32*)(unit->own + 1024);
  f32* const o2048_f32 = (f32*)(unit->own + 2048);
  const f32* const p0 = (const f32*)(operands[0]);
  const f32* const p1 = (const f32*)(operands[1]);
  const f32* const p2 = (const f32*)(operands[2]);
  f32* const r0 = (f32*)(results[0]);
  f32* const r1 = (f32*)(results[1]);
  f32* const w0_f32 = (f32*)(workspace + 0);
  f32* const w1048576_f32 = (f32*)(workspace + 1048576);
  f32* const w1064960_f32 = (f32*)(ck_part<RESIDENT>(unit, workspace + 1064960, 0, 256, 0));
  f32* const w1065984_f32 = (f32*)(workspace + 1065984);
  i64 v100;
  i64 v56;
  i64 v67;
  {
    for (i32 i0 = ck_lane(); i0 < 256; i0 += 128) {
      o0_f32[i0] = 0.0f;
    }
  }
  if (unit->index == 0) {
    {
      for (i32 i1 = ck_lane(); i1 < 1024; i1 += 128) {
        r0[i1] = 0.0f;
      }
    }
  }
  for (i32 v52 = unit->index; v52 < 4; v52 += unit->count) {
    {
      const i64 t1 = i64(v52) * i64(64LL);
      v56 = t1;
    }
    const f32* const d58 = p1 + ck_clamp_index(v56, 192) * 1;
    ck_block_barrier();
    {
      const i32 n2 = ck_clamp_index(v56, 192);
      for (i32 i0 = 0; i0 < 4; ++i0) {
        ck_dot_fixed<f32, f32, f32, 4, 64, 256, 256, 1, 1024, 1, 1024, 1, CkDotColumns<4, 4, 16, 4>>(1, p0, 0, d58 + 256 * i0, 0, (w1048576_f32 + n2) + 256 * i0, 0);
        ck_block_barrier();
      }
    }
  }
  for (i32 v97 = unit->index; v97 < 4; v97 += unit->count) {
    {
      const i64 t3 = i64(v97) * i64(64LL);
      v100 = t3;
    }
    const f32* const d101 = p2 + ck_clamp_index(v100, 192) * 1;
    ck_block_barrier();
    {
      const i32 n4 = ck_clamp_index(i64(v97), 3);
      {
        i32 at = ck_lane();
        for (; at < 64640; at += 1024) {
          f32 h5[8];
          #pragma unroll
          for (i32 j = 0; j < 8; ++j) {
            const i32 l = at + 128 * j;
            const i32 i2 = l % 64;
            const i32 i1 = l / 64;
            const f32 t6 = d101[256 * i1 + i2];
            h5[j] = t6;
          }
          #pragma unroll
          for (i32 j = 0; j < 8; ++j) {
            const i32 l = at + 128 * j;
            const i32 i2 = l % 64;
            const i32 i1 = l / 64;
            w0_f32[65536 * n4 + 64 * i1 + i2] = h5[j];
          }
        }
      }
    }
  }
  ck_block_barrier();
  if (unit->index == 0) {
    {
      ck_copy(w1065984_f32, o0_f32, 1024);
    }
  }
  ck_arrive(unit);
  ck_wait(unit);
  for (i32 v37 = 0; v37 < 4; ++v37) {
    for (i32 v61 = unit->index; v61 < 4; v61 += unit->count) {
      const f32* const d109 = w0_f32 + ck_clamp_index(i64(v61), 3) * 65536;
      {
        const i64 t7 = i64(v61) * i64(64LL);
        v67 = t7;
      }
      const f32* const d71 = w1048576_f32 + ck_clamp_index(i64(v37), 3) * 1024 + ck_clamp_index(v67, 192) * 1;
      const f32* const d83 = w1065984_f32 + ck_clamp_index(v67, 192) * 1;
      ck_block_barrier();
      f32 e34;
      f32 e35;
      f32 e36;
      f32 e37;
      f32 e38;
      {
        if constexpr (RESIDENT) {
          for (i32 i0 = ck_lane(); i0 < 64; i0 += 128) {
            e34 = d71[i0 + 768];
            e35 = d71[i0 + 256];
            e36 = d83[i0];
            e37 = d71[i0];
            e38 = d71[i0 + 512];
          }
        }
      }
      {
        ck_dot_fixed<f32, f32, f32, 1, 256, 256, 0, 1, 256, 1, 0, 1, CkDotColumns<4, 4, 32, 2>>(1, o0_f32, 0, d109, 0, o1024_f32, 0);
      }
      ck_block_barrier();
      {
        const i32 n8 = ck_clamp_index(i64(v37), 3);
        const i32 n9 = ck_clamp_index(v67, 192);
        const i32 n10 = ck_clamp_index(v67, 192);
        const i32 n11 = ck_clamp_index(v67, 192);
        for (i32 i0 = ck_lane(); i0 < 64; i0 += 128) {
          const f32 t12 = (RESIDENT) ? e34 : d71[i0 + 768];
          const f32 t13 = o1024_f32[i0 + 192];
          const f32 t14 = t12 + t13;
          const f32 t15 = ck_logistic(t14);
          const f32 t16 = (RESIDENT) ? e35 : d71[i0 + 256];
          const f32 t17 = o1024_f32[i0 + 64];
          const f32 t18 = t16 + t17;
          const f32 t19 = ck_logistic(t18);
          const f32 t20 = (RESIDENT) ? e36 : d83[i0];
          const f32 t21 = t19 * t20;
          const f32 t22 = (RESIDENT) ? e37 : d71[i0];
          const f32 t23 = o1024_f32[i0];
          const f32 t24 = t22 + t23;
          const f32 t25 = ck_logistic(t24);
          const f32 t26 = (RESIDENT) ? e38 : d71[i0 + 512];
          const f32 t27 = o1024_f32[i0 + 128];
          const f32 t28 = t26 + t27;
          const f32 t29 = ck_tanh(t28);
          const f32 t30 = t25 * t29;
          const f32 t31 = t21 + t30;
          const f32 t32 = ck_tanh(t31);
          const f32 t33 = t15 * t32;
          o2048_f32[i0] = t33;
          r0[256 * n8 + n9 + i0] = t33;
          w1065984_f32[n10 + i0] = t31;
          w1064960_f32[n11 + i0] = t33;
        }
      }
    }
    ck_block_barrier();
    {
      ck_next_step(unit);
      ck_send_parts<4, 0, 1, 64, 256>(unit, 0, w1064960_f32);
      ck_receive_parts<1, 256, 256>(unit, 0, o0_f32);
    }
  }
  ck_block_barrier();
  if (unit->index == 0) {
    {
      ck_copy(r1, o0_f32, 1024);
    }
  }
}
CK_ENTRIES
