//! Fused CPU kernels for the fine-tuning step.
pub mod gemm;
pub mod isa;
pub mod storage;
