// jax_cocktail program
#define CK_THREADS 128
#define CK_SCRATCH_BYTES 8192
#define CK_OPERANDS 5
#define CK_RESULTS 3
#define CK_MOST_UNITS 4
#define CK_RESIDENT_UNITS 4
#define CK_SHARED_BYTES 3168256
#define CK_OWN_BYTES 6720
#define CK_RESIDENT_BYTES 1024
#define CK_TAGGED_WORDS 514
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
  f32* const o2048_f32 = (f32*)(unit->own + 2048);
  f32* const o4096_f32 = (f32*)(unit->own + 4096);
  f32* const o5120_f32 = (f32*)(unit->own + 5120);
  f32* const o512_f32 = (f32*)(unit->own + 512);
  f32* const o6144_f32 = (f32*)(unit->own + 6144);
  const f32* const p0 = (const f32*)(operands[0]);
  const f32* const p1 = (const f32*)(operands[1]);
  const f32* const p2 = (const f32*)(operands[2]);
  const f32* const p3 = (const f32*)(operands[3]);
  const f32* const p4 = (const f32*)(operands[4]);
  f32* const r0 = (f32*)(results[0]);
  f32* const r1 = (f32*)(results[1]);
  f32* const r2 = (f32*)(results[2]);
  f32* const w0_f32 = (f32*)(workspace + 0);
  f32* const w1048576_f32 = (f32*)(workspace + 1048576);
  f32* const w2097152_f32 = (f32*)(workspace + 2097152);
  f32* const w3145728_f32 = (f32*)(workspace + 3145728);
  f32* const w3162112_f32 = (f32*)(ck_part<RESIDENT>(unit, workspace + 3162112, 0, 512, 0));
  f32* const w3163136_f32 = (f32*)(ck_part<RESIDENT>(unit, workspace + 3163136, 0, 512, 2));
  f32* const w3164160_f32 = (f32*)(workspace + 3164160);
  f32* const w3165184_f32 = (f32*)(ck_part<RESIDENT>(unit, workspace + 3165184, 512, 512, 0));
  f32* const w3166208_f32 = (f32*)(workspace + 3166208);
  f32* const w3167232_f32 = (f32*)(ck_part<RESIDENT>(unit, workspace + 3167232, 512, 512, 2));
  i64 v116;
  i64 v128;
  i64 v133;
  i64 v169;
  i64 v177;
  i64 v221;
  i64 v241;
  i64 v250;
  i64 v264;
  i64 v278;
  i64 v77;
  bool v78;
  i32 v79;
  i64 v86;
  i64 v87;
  bool v88;
  i32 v89;
  for (i32 v112 = unit->index; v112 < 4; v112 += unit->count) {
    {
      const i64 t1 = i64(v112) * i64(64LL);
      v116 = t1;
    }
    const f32* const d118 = p1 + ck_clamp_index(v116, 192) * 1;
    ck_block_barrier();
    {
      const i32 n2 = ck_clamp_index(v116, 192);
      for (i32 i0 = 0; i0 < 4; ++i0) {
        ck_dot_fixed<f32, f32, f32, 4, 64, 256, 256, 1, 1024, 1, 1024, 1, CkDotColumns<4, 4, 16, 4>>(1, p0, 0, d118 + 256 * i0, 0, (w3145728_f32 + n2) + 256 * i0, 0);
        ck_block_barrier();
      }
    }
  }
  for (i32 v211 = unit->index; v211 < 2; v211 += unit->count) {
    {
      for (i32 i0 = ck_lane(); i0 < 128; i0 += 128) {
        o0_f32[i0] = 0.0f;
      }
    }
    {
      const i64 t3 = i64(v211) * i64(128LL);
      v221 = t3;
    }
    ck_block_barrier();
    {
      ck_copy(o512_f32, o0_f32, 512);
    }
    ck_block_barrier();
    {
      const i32 n4 = ck_clamp_index(v221, 128);
      const i32 n5 = ck_clamp_index(v221, 128);
      for (i32 i0 = ck_lane(); i0 < 128; i0 += 128) {
        const f32 t6 = o512_f32[i0];
        w3164160_f32[n4 + i0] = t6;
        w3165184_f32[n5 + i0] = t6;
      }
    }
  }
  for (i32 v227 = ck_first_part(unit, 2); v227 < 2; v227 += unit->count) {
    ck_block_barrier();
    {
      for (i32 i0 = ck_lane(); i0 < 128; i0 += 128) {
        o2048_f32[i0] = 0.0f;
      }
    }
    {
      for (i32 i1 = ck_lane(); i1 < 512; i1 += 128) {
        o0_f32[i1] = 0.0f;
      }
    }
    {
      const i64 t7 = i64(v227) * i64(128LL);
      v241 = t7;
    }
    ck_block_barrier();
    {
      ck_copy(o4096_f32, o2048_f32, 512);
    }
    ck_block_barrier();
    {
      ck_copy(o2048_f32, o0_f32, 2048);
    }
    {
      const i32 n8 = ck_clamp_index(v241, 128);
      const i32 n9 = ck_clamp_index(v241, 128);
      for (i32 i0 = ck_lane(); i0 < 128; i0 += 128) {
        const f32 t10 = o4096_f32[i0];
        w3166208_f32[n8 + i0] = t10;
        w3167232_f32[n9 + i0] = t10;
      }
    }
    ck_block_barrier();
    {
      const i32 n11 = ck_clamp_index(v241, 128);
      {
        i32 at = ck_lane();
        for (; at < 128; at += 512) {
          f32 h12[4];
          #pragma unroll
          for (i32 j = 0; j < 4; ++j) {
            const i32 l = at + 128 * j;
            const i32 i1 = l % 128;
            const i32 i0 = l / 128;
            const f32 t13 = o2048_f32[128 * i0 + i1];
            h12[j] = t13;
          }
          #pragma unroll
          for (i32 j = 0; j < 4; ++j) {
            const i32 l = at + 128 * j;
            const i32 i1 = l % 128;
            const i32 i0 = l / 128;
            r0[n11 + 256 * i0 + i1] = h12[j];
          }
        }
      }
    }
  }
  ck_arrive(unit);
  for (i32 v247 = unit->index; v247 < 2; v247 += unit->count) {
    {
      const i64 t14 = i64(v247) * i64(128LL);
      v250 = t14;
    }
    const f32* const d251 = p2 + ck_clamp_index(v250, 128) * 1;
    ck_block_barrier();
    {
      const i32 n15 = ck_clamp_index(i64(v247), 1);
      {
        i32 at = ck_lane();
        for (; at < 130176; at += 1024) {
          f32 h16[8];
          #pragma unroll
          for (i32 j = 0; j < 8; ++j) {
            const i32 l = at + 128 * j;
            const i32 i2 = l % 128;
            const i32 i1 = l / 128;
            const f32 t17 = d251[256 * i1 + i2];
            h16[j] = t17;
          }
          #pragma unroll
          for (i32 j = 0; j < 8; ++j) {
            const i32 l = at + 128 * j;
            const i32 i2 = l % 128;
            const i32 i1 = l / 128;
            w0_f32[131072 * n15 + 128 * i1 + i2] = h16[j];
          }
        }
      }
    }
  }
  for (i32 v261 = ck_first_part(unit, 2); v261 < 2; v261 += unit->count) {
    {
      const i64 t18 = i64(v261) * i64(128LL);
      v264 = t18;
    }
    const f32* const d265 = p3 + ck_clamp_index(v264, 128) * 1;
    ck_block_barrier();
    {
      const i32 n19 = ck_clamp_index(i64(v261), 1);
      {
        i32 at = ck_lane();
        for (; at < 130176; at += 1024) {
          f32 h20[8];
          #pragma unroll
          for (i32 j = 0; j < 8; ++j) {
            const i32 l = at + 128 * j;
            const i32 i2 = l % 128;
            const i32 i1 = l / 128;
            const f32 t21 = d265[256 * i1 + i2];
            h20[j] = t21;
          }
          #pragma unroll
          for (i32 j = 0; j < 8; ++j) {
            const i32 l = at + 128 * j;
            const i32 i2 = l % 128;
            const i32 i1 = l / 128;
            w1048576_f32[131072 * n19 + 128 * i1 + i2] = h20[j];
          }
        }
      }
    }
  }
  for (i32 v275 = ck_first_part(unit, 2); v275 < 2; v275 += unit->count) {
    {
      const i64 t22 = i64(v275) * i64(128LL);
      v278 = t22;
    }
    const f32* const d279 = p4 + ck_clamp_index(v278, 128) * 1;
    ck_block_barrier();
    {
      const i32 n23 = ck_clamp_index(i64(v275), 1);
      {
        i32 at = ck_lane();
        for (; at < 130176; at += 1024) {
          f32 h24[8];
          #pragma unroll
          for (i32 j = 0; j < 8; ++j) {
            const i32 l = at + 128 * j;
            const i32 i2 = l % 128;
            const i32 i1 = l / 128;
            const f32 t25 = d279[256 * i1 + i2];
            h24[j] = t25;
          }
          #pragma unroll
          for (i32 j = 0; j < 8; ++j) {
            const i32 l = at + 128 * j;
            const i32 i2 = l % 128;
            const i32 i1 = l / 128;
            w2097152_f32[131072 * n23 + 128 * i1 + i2] = h24[j];
          }
        }
      }
    }
  }
  ck_wait(unit);
  {
    ck_copy(o4096_f32, w3164160_f32, 1024);
  }
  {
    ck_copy(o5120_f32, w3166208_f32, 1024);
  }
  for (i32 v64 = 0; v64 < 5; ++v64) {
    {
      const i64 t26 = ck_clamp(i64(0LL), i64(v64), i64(3LL));
      v77 = t26;
      const bool t27 = i64(v64) == v77;
      v78 = t27;
      const i32 t28 = ck_convert<i32>(v78);
      v79 = t28;
      const i64 t29 = i64(v64) - i64(1LL);
      v86 = t29;
      const i64 t30 = ck_clamp(i64(0LL), v86, i64(3LL));
      v87 = t30;
      const bool t31 = v86 == v87;
      v88 = t31;
      const i32 t32 = ck_convert<i32>(v88);
      v89 = t32;
    }
    for (i32 v121 = unit->index; v121 < 2; v121 += unit->count) {
      if (v79 <= 0) {
        {
          const i64 t33 = i64(v121) * i64(128LL);
          v128 = t33;
        }
        const f32* const d130 = o4096_f32 + ck_clamp_index(v128, 128) * 1;
        ck_block_barrier();
        {
          const i32 n34 = ck_clamp_index(v128, 128);
          for (i32 i0 = ck_lane(); i0 < 128; i0 += 128) {
            const f32 t35 = d130[i0];
            w3162112_f32[n34 + i0] = t35;
          }
        }
      }
      else {
        const f32* const d259 = w0_f32 + ck_clamp_index(i64(v121), 1) * 131072;
        {
          const i64 t36 = i64(v121) * i64(128LL);
          v133 = t36;
        }
        const f32* const d149 = w3165184_f32 + ck_clamp_index(v133, 128) * 1;
        const f32* const d134 = w3145728_f32 + ck_clamp_index(v77, 3) * 1024 + ck_clamp_index(v133, 128) * 1;
        ck_block_barrier();
        f32 e61;
        f32 e62;
        f32 e63;
        f32 e64;
        {
          if constexpr (RESIDENT) {
            for (i32 i0 = ck_lane(); i0 < 128; i0 += 128) {
              e61 = d134[i0 + 768];
              e62 = d134[i0 + 256];
              e63 = d134[i0];
              e64 = d134[i0 + 512];
            }
          }
        }
        {
          ck_dot_fixed<f32, f32, f32, 1, 512, 256, 0, 1, 512, 1, 0, 1, CkDotColumns<4, 4, 32, 1>>(1, o4096_f32, 0, d259, 0, o0_f32, 0);
        }
        ck_block_barrier();
        {
          const i32 n37 = ck_clamp_index(v133, 128);
          const i32 n38 = ck_clamp_index(v133, 128);
          for (i32 i0 = ck_lane(); i0 < 128; i0 += 128) {
            const f32 t39 = (RESIDENT) ? e61 : d134[i0 + 768];
            const f32 t40 = o0_f32[i0 + 384];
            const f32 t41 = t39 + t40;
            const f32 t42 = ck_logistic(t41);
            const f32 t43 = (RESIDENT) ? e62 : d134[i0 + 256];
            const f32 t44 = o0_f32[i0 + 128];
            const f32 t45 = t43 + t44;
            const f32 t46 = ck_logistic(t45);
            const f32 t47 = d149[i0];
            const f32 t48 = t46 * t47;
            const f32 t49 = (RESIDENT) ? e63 : d134[i0];
            const f32 t50 = o0_f32[i0];
            const f32 t51 = t49 + t50;
            const f32 t52 = ck_logistic(t51);
            const f32 t53 = (RESIDENT) ? e64 : d134[i0 + 512];
            const f32 t54 = o0_f32[i0 + 256];
            const f32 t55 = t53 + t54;
            const f32 t56 = ck_tanh(t55);
            const f32 t57 = t52 * t56;
            const f32 t58 = t48 + t57;
            const f32 t59 = ck_tanh(t58);
            const f32 t60 = t42 * t59;
            w3162112_f32[n37 + i0] = t60;
            w3165184_f32[n38 + i0] = t58;
          }
        }
      }
    }
    for (i32 v162 = ck_first_part(unit, 2); v162 < 2; v162 += unit->count) {
      if (v89 <= 0) {
        {
          const i64 t65 = i64(v162) * i64(128LL);
          v169 = t65;
        }
        const f32* const d171 = o5120_f32 + ck_clamp_index(v169, 128) * 1;
        ck_block_barrier();
        {
          const i32 n66 = ck_clamp_index(v87, 3);
          const i32 n67 = ck_clamp_index(v169, 128);
          const i32 n68 = ck_clamp_index(v169, 128);
          for (i32 i0 = ck_lane(); i0 < 128; i0 += 128) {
            const f32 t69 = d171[i0];
            r0[256 * n66 + n67 + i0] = t69;
            w3163136_f32[n68 + i0] = t69;
          }
        }
      }
      else {
        const f32* const d273 = w1048576_f32 + ck_clamp_index(i64(v162), 1) * 131072;
        const f32* const d287 = w2097152_f32 + ck_clamp_index(i64(v162), 1) * 131072;
        {
          const i64 t70 = i64(v162) * i64(128LL);
          v177 = t70;
        }
        const f32* const d193 = w3167232_f32 + ck_clamp_index(v177, 128) * 1;
        ck_block_barrier();
        {
          ck_dot_fixed<f32, f32, f32, 1, 512, 256, 0, 1, 512, 1, 0, 1, CkDotColumns<4, 4, 32, 1>>(1, o4096_f32, 0, d273, 0, o0_f32, 0);
        }
        ck_block_barrier();
        {
          ck_dot_fixed<f32, f32, f32, 1, 512, 256, 0, 1, 512, 1, 0, 1, CkDotColumns<4, 4, 32, 1>>(1, o5120_f32, 0, d287, 0, o2048_f32, 0);
        }
        ck_block_barrier();
        {
          const i32 n71 = ck_clamp_index(v87, 3);
          const i32 n72 = ck_clamp_index(v177, 128);
          const i32 n73 = ck_clamp_index(v177, 128);
          const i32 n74 = ck_clamp_index(v177, 128);
          for (i32 i0 = ck_lane(); i0 < 128; i0 += 128) {
            const f32 t75 = o0_f32[i0 + 384];
            const f32 t76 = o2048_f32[i0 + 384];
            const f32 t77 = t75 + t76;
            const f32 t78 = ck_logistic(t77);
            const f32 t79 = o0_f32[i0 + 128];
            const f32 t80 = o2048_f32[i0 + 128];
            const f32 t81 = t79 + t80;
            const f32 t82 = ck_logistic(t81);
            const f32 t83 = d193[i0];
            const f32 t84 = t82 * t83;
            const f32 t85 = o0_f32[i0];
            const f32 t86 = o2048_f32[i0];
            const f32 t87 = t85 + t86;
            const f32 t88 = ck_logistic(t87);
            const f32 t89 = o0_f32[i0 + 256];
            const f32 t90 = o2048_f32[i0 + 256];
            const f32 t91 = t89 + t90;
            const f32 t92 = ck_tanh(t91);
            const f32 t93 = t88 * t92;
            const f32 t94 = t84 + t93;
            const f32 t95 = ck_tanh(t94);
            const f32 t96 = t78 * t95;
            o6144_f32[i0] = t96;
            r0[256 * n71 + n72 + i0] = t96;
            w3163136_f32[n73 + i0] = t96;
            w3167232_f32[n74 + i0] = t94;
          }
        }
      }
    }
    ck_block_barrier();
    {
      ck_next_step(unit);
      ck_send_parts<2, 0, 1, 128, 256>(unit, 0, w3162112_f32);
      ck_send_parts<2, 2, 1, 128, 256>(unit, 256, w3163136_f32);
      ck_send_nothing<2, 0>(unit, 512);
      ck_receive_parts<1, 256, 256>(unit, 0, o4096_f32);
      ck_receive_parts<1, 256, 256>(unit, 256, o5120_f32);
      ck_receive_nothing<2>(unit, 512);
    }
  }
  ck_block_barrier();
  if (unit->index == 0) {
    {
      ck_copy(r1, o4096_f32, 1024);
    }
  }
  if (unit->index == 0) {
    {
      ck_copy(r2, o5120_f32, 1024);
    }
  }
}
CK_ENTRIES
