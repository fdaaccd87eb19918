//! Fused CPU kernels for the fine-tuning step of BERT-family encoders: plain slices in, plain slices out.
//! Only [`bridge`] knows Burn: it turns tensors into slices and back.
//!
//! [`layer::forward`] and [`backward::backward`] compute one encoder layer over *packed* tokens: the real tokens of all
//! samples one after the other, `[tokens, features]`, with the place where each sample begins. Padding is no token, so it
//! costs nothing. All memory comes from the global allocator; a [`layer::Workspace`] holds what can be used again.
//!
//! Results are the same, bit for bit, whatever the number of threads.

pub mod activation;
pub mod adamw;
pub mod attention;
pub mod backward;
pub mod bridge;
pub mod dropout;
pub mod embeddings;
pub mod gemm;
pub mod gradients;
pub mod isa;
pub mod layer;
pub mod lora;
pub mod math;
pub mod norm;
mod rows;
pub mod storage;
