//! Where Burn's tensors become slices: reading and writing tensors of its CPU backend (Flex) without copying them.
//!
//! Everything here returns `None` for a tensor of another backend, whose caller then takes the generic path.

use burn::backend::Flex;
use burn::backend::flex::FlexTensor;
use burn::module::Param;
use burn::tensor::{Device, FloatDType, Shape, Tensor};

/// Whether this device is Burn's CPU backend.
pub fn is_flex(device: &Device) -> bool {
    let plain = device.clone().without_autodiff();
    Tensor::<1>::zeros([1], &plain).try_into_primitive::<Flex>().is_ok()
}

/// A tensor to be read as a slice.
#[derive(Clone, Debug)]
pub struct Values {
    tensor: FlexTensor,
}

impl Values {
    /// The tensor's values in 32 bits: shared where they lie in order already, else copied.
    pub fn of<const D: usize>(tensor: Tensor<D>) -> Option<Self> {
        let tensor = tensor.without_autodiff().cast(FloatDType::F32);
        let tensor = tensor.try_into_primitive::<Flex>().ok()?;
        let ordered = tensor.as_slice::<f32>().is_some();
        Some(Values { tensor: if ordered { tensor } else { tensor.to_contiguous() } })
    }

    /// A parameter's values.
    pub fn of_param<const D: usize>(param: &Param<Tensor<D>>) -> Option<Self> {
        Self::of(param.val())
    }

    /// The values as they lie in memory.
    pub fn bytes(&self) -> &[u8] {
        let size = size_of::<f32>();
        let start = self.tensor.layout().start_offset() * size;
        &self.tensor.bytes()[start..start + self.tensor.layout().num_elements() * size]
    }

    /// The values, row-major.
    pub fn slice(&self) -> &[f32] {
        self.tensor.as_slice().unwrap_or_else(|| unreachable!("made contiguous when it was taken"))
    }
}

/// A tensor of its own memory, to be written as a slice.
#[derive(Debug)]
pub struct ValuesMut {
    tensor: FlexTensor,
}

impl ValuesMut {
    /// Zeros of a shape.
    pub fn zeros<const D: usize>(shape: [usize; D]) -> Self {
        ValuesMut { tensor: FlexTensor::zeros(Shape::from(shape), FloatDType::F32.into()) }
    }

    /// Takes over a tensor's memory: copied only where others share it, or where it does not lie in order. The tensor
    /// comes back where it is not Flex's.
    pub fn of<const D: usize>(tensor: Tensor<D>) -> Option<Self> {
        let tensor = tensor.without_autodiff().cast(FloatDType::F32);
        let tensor = tensor.try_into_primitive::<Flex>().ok()?;
        let whole = tensor.is_contiguous()
            && tensor.layout().start_offset() == 0
            && tensor.bytes().len() == tensor.layout().num_elements() * size_of::<f32>();
        let tensor = if whole { tensor } else { tensor.to_contiguous() };
        Some(ValuesMut { tensor })
    }

    /// The values, row-major.
    pub fn slice(&self) -> &[f32] {
        self.tensor.storage()
    }

    /// The values, row-major, to write.
    pub fn slice_mut(&mut self) -> &mut [f32] {
        self.tensor.storage_mut()
    }

    /// The tensor again.
    pub fn into_tensor<const D: usize>(self) -> Tensor<D> {
        Tensor::from_primitive::<Flex>(self.tensor)
    }
}

/// A tensor made of values, without copying them.
pub fn tensor<const D: usize>(values: Vec<f32>, shape: [usize; D], device: &Device) -> Tensor<D> {
    let plain = device.clone().without_autodiff();
    Tensor::from_data(burn::tensor::TensorData::new(values, shape), &plain)
}
