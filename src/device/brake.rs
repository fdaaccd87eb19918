//! What stops a pool at the cap: the card itself, made as small as the cap by [ballast](super::ballast), or else the
//! pool's own account of its reserve, looked at between passes.

use std::sync::OnceLock;

use super::select::Selected;
use crate::plan::ByteSize;
use crate::probe::protocol::CapHold;

/// What the cap leaves to the pools.
#[derive(Clone, Copy, Debug)]
pub struct Room {
    /// Bytes that pools may reserve; `None` without a cap.
    pub bytes: Option<u64>,
    /// Bytes that the runtime takes beside them: its context, and the code of kernels.
    pub context: u64,
    /// Whether `context` could be told; it is 0 otherwise.
    pub context_known: bool,
}

/// What the context of this process takes: told once, for there is one for all jobs of a worker.
static CONTEXT: OnceLock<Option<u64>> = OnceLock::new();

impl Room {
    /// `used_before` is what everybody used of the card before this process's runtime was set up, where that was so.
    pub fn of(selected: &Selected, cap: Option<u64>, used_before: Option<u64>, reserved: u64) -> Self {
        let told = CONTEXT.get_or_init(|| {
            let now = super::select::used_by_all(selected)?;
            Some(now.saturating_sub(used_before?).saturating_sub(reserved))
        });
        let context = told.unwrap_or(0);
        Room { bytes: cap.map(|cap| cap.saturating_sub(context)), context, context_known: told.is_some() }
    }
}

/// A brake that is set.
pub enum Brake {
    /// There is no cap.
    Off,
    /// The card has been made as small as the cap.
    #[cfg(feature = "cuda")]
    Ballast(super::ballast::Ballast<super::cuda::Card>),
    /// The reserve is compared with the cap.
    Reserve,
}

impl Brake {
    /// Sets the brake of a device whose pools hold `reserved` bytes.
    pub fn set(selected: &Selected, room: &Room, reserved: u64) -> Self {
        let Some(bytes) = room.bytes else { return Brake::Off };
        Self::ballast(selected, bytes.saturating_sub(reserved)).unwrap_or(Brake::Reserve)
    }

    #[cfg(feature = "cuda")]
    fn ballast(selected: &Selected, room: u64) -> Option<Self> {
        use super::ballast::{Ballast, Weighed};
        let card = super::cuda::Card::find(selected.cuda_index()?).ok()?;
        match Ballast::leaving(room, card) {
            Weighed::Held(ballast) => Some(Brake::Ballast(ballast)),
            Weighed::Short(_) | Weighed::Unable => None,
        }
    }

    #[cfg(not(feature = "cuda"))]
    fn ballast(_selected: &Selected, _room: u64) -> Option<Self> {
        None
    }

    /// How the cap is held.
    pub fn hold(&self) -> CapHold {
        match self {
            #[cfg(feature = "cuda")]
            Brake::Ballast(_) => CapHold::Ballast,
            Brake::Off | Brake::Reserve => CapHold::Reserve,
        }
    }

    /// Who has the memory that was refused, if it is not the cap that explains the refusal: of what the cap leaves,
    /// `reserved` bytes are held and the rest must be free.
    pub fn taken_by_others(&mut self, room: &Room, reserved: u64) -> Option<String> {
        let bytes = room.bytes?;
        let expected = bytes.saturating_sub(reserved);
        let free = self.free()?;
        // Less than a few grains is rounding, or one more kernel's code.
        let missing = expected.checked_sub(free).filter(|&missing| missing > 8 * super::ballast::GRAIN)?;
        Some(format!(
            "{} of the device's memory went to other programs: {} are free where the cap leaves {}",
            ByteSize(missing),
            ByteSize(free),
            ByteSize(expected)
        ))
    }

    fn free(&mut self) -> Option<u64> {
        match self {
            #[cfg(feature = "cuda")]
            Brake::Ballast(ballast) => ballast.bank().free(),
            Brake::Off | Brake::Reserve => None,
        }
    }
}
