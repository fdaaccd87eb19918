//! autofit with a model of your own: `cargo run --release --example own_model -- 6M`.
//!
//! The model is a small MLP-Mixer (Tolstikhin et al. 2021), which has no layers of a transformer, in plain Burn. The part
//! that autofit needs begins at `impl Workload`; nothing above it knows of autofit.

use autofit::{Evaluation, Result, Setup, Training, Workload};
use burn::module::Module;
use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::{LayerNorm, LayerNormConfig, Linear, LinearConfig};
use burn::optim::{AdamWConfig, GradientsAccumulator, GradientsParams, ModuleOptimizer};
use burn::tensor::{Device, Distribution, Int, Tensor, activation::gelu};

/// An image of 32 × 32 pixels in patches of 8 × 8 pixels with 3 colours each.
const PATCHES: usize = 16;
const PATCH: usize = 192;
const CLASSES: usize = 10;

/// Mixes patches, then channels, each with a small perceptron around which the input is carried.
#[derive(Module, Debug)]
struct Block {
    norms: [LayerNorm; 2],
    patches: [Linear; 2],
    channels: [Linear; 2],
}

impl Block {
    fn init(width: usize, device: &Device) -> Self {
        let mix = |size, hidden| [(size, hidden), (hidden, size)].map(|(a, b)| LinearConfig::new(a, b).init(device));
        let norms = [0, 1].map(|_| LayerNormConfig::new(width).init(device));
        Block { norms, patches: mix(PATCHES, PATCHES / 2), channels: mix(width, width * 2) }
    }

    /// `[batch, patches, width]` → the same.
    fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        let [into, back] = &self.patches;
        let y = self.norms[0].forward(x.clone()).swap_dims(1, 2);
        let x = x + back.forward(gelu(into.forward(y))).swap_dims(1, 2);
        let [into, back] = &self.channels;
        x.clone() + back.forward(gelu(into.forward(self.norms[1].forward(x))))
    }
}

#[derive(Module, Debug)]
struct Mixer {
    embed: Linear,
    blocks: Vec<Block>,
    head: Linear,
}

impl Mixer {
    fn init(width: usize, depth: usize, device: &Device) -> Self {
        let blocks = (0..depth).map(|_| Block::init(width, device)).collect();
        let [embed, head] = [(PATCH, width), (width, CLASSES)].map(|(a, b)| LinearConfig::new(a, b).init(device));
        Mixer { embed, blocks, head }
    }

    /// Patches `[batch, patches, 192]` → logits `[batch, classes]`.
    fn forward(&self, images: Tensor<3>) -> Tensor<2> {
        let mixed = self.blocks.iter().fold(self.embed.forward(images), |x, block| block.forward(x));
        self.head.forward(mixed.mean_dim(1).squeeze_dim(1))
    }
}

/// What is to be tuned. Its fields are all that measurements depend on, so their text tells studies apart.
#[derive(Debug)]
struct Images {
    width: usize,
    depth: usize,
}

impl Workload for Images {
    type Training = Run;

    fn name(&self) -> String {
        "mixer".into()
    }

    fn identity(&self) -> String {
        format!("{self:?}")
    }

    fn build(&self, setup: &Setup) -> Result<Run> {
        setup.device.seed(setup.seed);
        let model = Some(Mixer::init(self.width, self.depth, &setup.device));
        let (optimizer, gradients) = (AdamWConfig::new().init(), GradientsAccumulator::new());
        Ok(Run { model, optimizer, gradients, loss: 0.0, device: setup.device.clone() })
    }
}

/// A mixer under training: what the rest of a program would train with, too.
struct Run {
    /// Only away while it is updated.
    model: Option<Mixer>,
    optimizer: ModuleOptimizer,
    gradients: GradientsAccumulator<Mixer>,
    loss: f64,
    device: Device,
}

impl Run {
    fn model(&self) -> &Mixer {
        self.model.as_ref().expect("the model is there between updates")
    }
}

impl Training for Run {
    type Batch = (Tensor<3>, Tensor<1, Int>);

    /// Every image has the same size, so any is the worst; its content doesn't matter.
    fn worst(&mut self, samples: usize) -> Result<Self::Batch> {
        let images = Tensor::random([samples, PATCHES, PATCH], Distribution::Default, &self.device);
        Ok((images, Tensor::arange(0..samples as i64, &self.device) % CLASSES as i64))
    }

    fn accumulate(&mut self, (images, classes): &Self::Batch, share: f64) -> Result<()> {
        let logits = self.model().forward(images.clone());
        let loss = CrossEntropyLossConfig::new().init(&self.device).forward(logits, classes.clone()) * share;
        self.loss += loss.clone().try_into_scalar::<f32>()? as f64;
        let gradients = GradientsParams::from_grads(loss.backward(), self.model());
        self.gradients.accumulate(self.model.as_ref().expect("as above"), gradients);
        Ok(())
    }

    fn update(&mut self) -> Result<f64> {
        let gradients = self.gradients.grads();
        self.model = self.model.take().map(|model| self.optimizer.step(1e-3, model, gradients));
        Ok(std::mem::take(&mut self.loss))
    }

    fn parameter_sum(&self) -> Result<f64> {
        autofit::parameter_sum(self.model())
    }

    fn evaluate(&mut self, (images, _): &Self::Batch) -> Result<Evaluation> {
        self.model().valid().forward(images.clone().without_autodiff()).try_into_data()?;
        Ok(Evaluation::Done)
    }
}

/// On the CPU, the memory of training is what this allocator counts.
#[global_allocator]
static METER: autofit::Meter = autofit::Meter::new();

pub fn main() -> Result<()> {
    let memory = std::env::args().nth(1).unwrap_or("4.5M".into());
    let search = autofit::tune(Images { width: 32, depth: 4 }).vram(&memory)?.effective_batch(64);
    let answer = search.results("results/own-model").narrate().run()?;
    println!("{answer}");
    println!("Train with micro-batches of {}, {} a step.", answer.knobs.micro_batch, answer.accumulation);
    Ok(())
}
