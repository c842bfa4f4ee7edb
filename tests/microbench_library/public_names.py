# ruff: noqa: E501 (names are as long as they are)
"""Kernel names that profilers printed in public, with what each says.

A row: name, library, role, tile, tile_k, stages, transpose, instruction, source.  Names are facts; the readings are ours,
after NVIDIA/cutlass media/docs/profiler.md and the answers in NVIDIA/cutlass issue 1025.
"""

from typing import Final

GEMV: Final = "matrix-vector product"
NEUSIGHT: Final = "NeuSight tables (github.com/sitar-lab/NeuSight)"
CUTLASS_1025: Final = "github.com/NVIDIA/cutlass/issues/1025"
CUTLASS_DOC: Final = "github.com/NVIDIA/cutlass media/docs/profiler.md and generated instances"
SGLANG_22353: Final = "github.com/sgl-project/sglang/pull/22353"
NANOCHAT_105: Final = "github.com/karpathy/nanochat/pull/105"
TRITONBENCH_41: Final = "github.com/meta-pytorch/tritonbench/issues/41"
PYTORCH_156203: Final = "github.com/pytorch/pytorch/pull/156203"
NSYS_AI_582: Final = "github.com/GindaChen/nsys-ai/pull/582"
PROFILES: Final = "public profiles of models, found by text search of public repositories"

XMMA_90: Final = "sm90_xmma_gemm_f16f16_f16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1_execute_segment_k_off_kernel__5x_cublas"
XMMA_80: Final = "sm80_xmma_gemm_f16f16_f16f32_f32_tn_n_tilesize32x32x64_stage6_warpsize2x2x1_tensor16x8x16_execute_kernel__5x_cublas"
XMMA_F32: Final = (
    "sm80_xmma_gemm_f32f32_f32f32_f32_nn_n_tilesize64x128x8_stage3_warpsize1x4x1_ffma_aligna4_alignc4_execute_kernel__5x_cublas"
)
XMMA_FP8: Final = (
    "sm89_xmma_gemm_e4m3bf16_e4m3f32_f32_tn_n_tilesize128x64x64_stage4_warpsize2x2x1_tensor16x8x32_algo2_execute_kernel__5x_cublas"
)
XMMA_CONV: Final = (
    "sm80_xmma_fprop_implicit_gemm_f16f16_f16f32_f32_nhwckrsc_nhwc_tilesize128x32x32_stage4_warpsize4x1x1_g1_tensor16x8x16_"
    "execute_kernel__5x_cudnn"
)
CUTLASS_3: Final = (
    "cutlass3x_sm90_tensorop_s64x128x16gemm_bf16_bf16_f32_bf16_bf16_128x128x64_2x1x1_0_ntn_align8_warpspecialized_pingpong_epi_tma"
)
CUTLASS_3_FP8: Final = (
    "cutlass3x_sm90_tensorop_s64x128x32gemm_e4m3_e4m3_f32_bf16_bf16_64x128x128_2x1x1_0_tnt_align16_warpspecialized_epi_nosmem"
)
GROUPED: Final = (
    "void cutlass::device_kernel<at::cuda::detail::enable_3x_kernel_for_sm10<cutlass::gemm::kernel::GemmUniversal<cutlass::gemm::"
    "GroupProblemShape<cute::tuple<int, int, int>>, cutlass::gemm::collective::CollectiveMma<cutlass::gemm::"
    "MainloopSm100ArrayTmaUmmaWarpSpecialized<(int)3, (int)8, (int)2, cute::tuple<cute::C<(int)2>, cute::C<(int)1>, "
    "cute::C<(int)1>>>, cute::tuple<cute::C<(int)128>, cute::C<(int)256>, cute::C<(int)64>>, cutlass::bfloat16_t, "
)
FLASH_3: Final = (
    "void cutlass::device_kernel<flash::enable_sm90_or_later<flash::FlashAttnFwdSm90<flash::CollectiveMainloopFwdSm90<2, "
    "cute::tuple<cute::C<1>, cute::C<1>, cute::C<1> >, cute::tuple<cute::C<128>, cute::C<80>, cute::C<256> >, 256, "
    "cutlass::bfloat16_t, float, cutlass::arch::Sm90, false>"
)
FLASH_2: Final = (
    "void flash::flash_fwd_kernel<Flash_fwd_kernel_traits<192, 128, 64, 8, false, false, cutlass::bfloat16_t>, true, false>"
    "(flash::Flash_fwd_params)"
)
COPY: Final = (
    "void at::native::elementwise_kernel<128, 4, at::native::gpu_kernel_impl_nocast<at::native::direct_copy_kernel_cuda"
    "(at::TensorIteratorBase&)::{lambda()#3}::operator()() const::{lambda()#12}::operator()() const::{lambda(c10::BFloat16)#1}>"
)
SPLIT_REDUCE: Final = "void splitkreduce_kernel<32, 16, int, float, float, float, float, true, true, false>(cublassplitkparams<float>, …)"
WMMA: Final = "void cutlass::Kernel2<cutlass_75_wmma_tensorop_f16_s161616gemm_f16_16x16_128x2_tn_align8>(T1::Params)"

PUBLIC_NAMES: Final = (
    # cuBLAS, Volta to Ampere
    ("ampere_sgemm_128x64_tn", "cublas", "gemm", (128, 64), 0, 0, "tn", "ffma", NEUSIGHT),
    ("ampere_sgemm_32x32_sliced1x4_tn", "cublas", "gemm", (32, 32), 0, 0, "tn", "ffma", NEUSIGHT),
    ("volta_sgemm_128x32_sliced1x4_nn", "cublas", "gemm", (128, 32), 0, 0, "nn", "ffma", NEUSIGHT),
    ("maxwell_sgemm_128x64_nt", "cublas", "gemm", (128, 64), 0, 0, "nt", "ffma", PROFILES),
    ("volta_fp16_s884gemm_fp16_128x64_ldg8_f2f_nn", "cublas", "gemm", (128, 64), 0, 0, "nn", "884", PROFILES),
    ("turing_fp16_s1688gemm_fp16_256x128_ldg8_f2f_tn", "cublas", "gemm", (256, 128), 0, 0, "tn", "1688", PROFILES),
    ("turing_fp16_s1688gemm_fp16_128x64_sliced1x2_ldg8_f2f_tn", "cublas", "gemm", (128, 64), 0, 0, "tn", "1688", PROFILES),
    ("turing_fp16_s1688gemm_fp16_256x128_ldg8_f2f_stages_32x1_nn", "cublas", "gemm", (256, 128), 32, 1, "nn", "1688", PROFILES),
    ("ampere_bf16_s1688gemm_bf16_128x128_ldg8_f2f_stages_32x1_nn", "cublas", "gemm", (128, 128), 32, 1, "nn", "1688", NANOCHAT_105),
    ("ampere_bf16_s16816gemm_bf16_256x128_ldg8_f2f_stages_32x3_nn", "cublas", "gemm", (256, 128), 32, 3, "nn", "16816", NANOCHAT_105),
    (
        "ampere_fp16_s16816gemm_fp16_64x64_sliced1x2_ldg8_relu_f2f_stages_64x6_tn",
        "cublas", "gemm", (64, 64), 64, 6, "tn", "16816", CUTLASS_1025,
    ),
    (SPLIT_REDUCE, "cublas", "split-k reduction", (), 0, 0, "", "", NEUSIGHT),
    ("void gemv2T_kernel_val<int, int, float, float, float, float, 128, 16, 4, 4, false>", "cublas", GEMV, (), 0, 0, "t", "", PROFILES),
    ("void gemmSN_TN_kernel<float, 128, 16, 2, 4, 2, 2, true>", "cublas", GEMV, (), 0, 0, "", "", PROFILES),
    # XMMA
    (XMMA_80, "cublas", "gemm", (32, 32), 64, 6, "tn", "16x8x16", PROFILES),
    (XMMA_F32, "cublas", "gemm", (64, 128), 8, 3, "nn", "ffma", PROFILES),
    (XMMA_90, "cublas", "gemm", (128, 128), 64, 0, "tn", "", PROFILES),
    (XMMA_FP8, "cublas", "gemm", (128, 64), 64, 4, "tn", "16x8x32", PROFILES),
    (XMMA_CONV, "cudnn", "convolution", (128, 32), 32, 4, "", "16x8x16", PROFILES),
    # CUTLASS
    ("cutlass_80_tensorop_f16_s16816gemm_relu_f16_128x128_32x4_tn_align8", "cutlass", "gemm", (128, 128), 32, 4, "tn", "16816", CUTLASS_1025),
    ("cutlass_80_simt_sgemm_128x64_8x5_nn_align1", "cutlass", "gemm", (128, 64), 8, 5, "nn", "ffma", CUTLASS_DOC),
    ("cutlass_80_tensorop_s1688gemm_128x256_16x3_tn_align4", "cutlass", "gemm", (128, 256), 16, 3, "tn", "1688", CUTLASS_DOC),
    (WMMA, "cutlass", "gemm", (16, 16), 128, 2, "tn", "161616", PROFILES),
    (CUTLASS_3, "cutlass", "gemm", (128, 128), 64, 0, "nt", "64x128x16", CUTLASS_DOC),
    (CUTLASS_3_FP8, "cutlass", "gemm", (64, 128), 128, 0, "tn", "64x128x32", CUTLASS_DOC),
    (GROUPED, "cutlass", "gemm", (128, 256), 64, 0, "", "", PYTORCH_156203),
    # nvjet
    ("nvjet_tst_128x24_64x11_2x1_v_bz_TNT", "cublas", "gemm", (128, 24), 64, 11, "tn", "", SGLANG_22353),
    ("nvjet_tst_192x16_64x8_2x2_2cta_h_bz_TNT", "cublas", "gemm", (192, 16), 64, 8, "tn", "", SGLANG_22353),
    ("nvjet_tst_64x24_64x16_4x1_v_bz_splitK_TNT", "cublas", "gemm", (64, 24), 64, 16, "tn", "", SGLANG_22353),
    ("nvjet_sm90_hss_320x128_64x3_1x2_h_bz_coopB_NNT", "cublas", "gemm", (320, 128), 64, 3, "nn", "", NSYS_AI_582),
    ("nvjet_sm90_tst_192x192_64x3_2x1_v_bz_coopB_NTN", "cublas", "gemm", (192, 192), 64, 3, "nt", "", PROFILES),
    ("nvjet_sm90_tst_256x128_64x4_1x2_h_bz_coopA_bias_TNT", "cublas", "gemm", (256, 128), 64, 4, "tn", "", PROFILES),
    ("nvjet_hsh_256x128_64x4_1x2_h_bz_coopA_NNT", "cublas", "gemm", (256, 128), 64, 4, "nn", "", PROFILES),
    ("nvjet_sm90_hss_64x8_64x16_1x1_h_bz_splitK_NNT", "cublas", "gemm", (64, 8), 64, 16, "nn", "", PROFILES),
    ("nvjet_qqtst_112x128_128x7_2x1_v_bz_coopA_algo2_TNN", "cublas", "gemm", (112, 128), 128, 7, "tn", "", PROFILES),
    ("nvjet_qqtst_128x256_128x6_2x1_2cta_v_bz_TNT", "cublas", "gemm", (128, 256), 128, 6, "tn", "", PROFILES),
    ("nvjet_qqtst_128x256_128x6_2x2_2cta_h_bz_Avec32UE8M0_Bvec32UE8M0_TNT", "cublas", "gemm", (128, 256), 128, 6, "tn", "", PROFILES),
    ("nvjet_sm120_tst_mma_64x64x128_3_32x32x128_tmaAB_alignCD4_bz_TNNN", "cublas", "gemm", (64, 64), 128, 3, "tn", "", PROFILES),
    # attention
    (FLASH_2, "flash-attention", "attention", (128, 64), 192, 0, "", "", PROFILES),
    (FLASH_3, "flash-attention", "attention", (128, 80), 256, 0, "", "", PROFILES),
    ("void pytorch_flash::flash_fwd_splitkv_combine_kernel<traits>(params)", "flash-attention", "attention reduction", (), 0, 0, "", "", PROFILES),
    (
        "cudnn_generated_fort_native_sdpa_sm90_knob_7_64x128x128_4x1x1_kernel0_0",
        "cudnn", "attention", (64, 128), 128, 0, "", "", TRITONBENCH_41,
    ),
    (
        "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x128x128_4x1x1_kernel0_0",
        "cudnn", "attention", (64, 128), 128, 0, "", "", PROFILES,
    ),
    ("fmha_cutlassF_bf16_aligned_64x128_rf_sm80", "pytorch", "attention", (64, 128), 0, 0, "", "", PROFILES),
    ("fmha_cutlassF_f32_aligned_64x64_rf_sm80", "pytorch", "attention", (64, 64), 0, 0, "", "", PROFILES),
    # PyTorch and its helpers
    (COPY, "pytorch", "copy", (), 0, 0, "", "", SGLANG_22353),
    ("void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float>>", "pytorch", "reduction", (), 0, 0, "", "", PROFILES),
    ("void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<c10::Half>>", "pytorch", "elementwise", (), 0, 0, "", "", PROFILES),
    ("void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda>", "pytorch", "copy", (), 0, 0, "", "", PROFILES),
    ("void at::native::(anonymous namespace)::CatArrayBatchedCopy_alignedK_contig<float, 2>", "pytorch", "copy", (), 0, 0, "", "", PROFILES),
    ("void at::native::vectorized_gather_kernel<16, long>(char*, char*, long*)", "pytorch", "gather", (), 0, 0, "", "", PROFILES),
    ("void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<float, float, false>", "pytorch", "norm", (), 0, 0, "", "", PROFILES),
    ("void implicit_convolve_sgemm<float, float, 1024, 5, 5, 3, 3, 3, 1, false, false, true>", "cudnn", "convolution", (), 0, 0, "", "ffma", PROFILES),
)  # fmt: skip
"""The table."""
