//! Memory held back, so that a card larger than the cap refuses where a card of that size would.
//!
//! A pool asks its driver for pages until the driver says no. On a card larger than the cap it would be given more than
//! the cap allows; with the rest of the card taken first, the driver's own refusal comes at the cap, at the very
//! allocation and through the very code by which a card of that size refuses.

/// What ballast is made of.
pub trait Bank {
    /// A block that is held.
    type Block;

    /// Bytes that the driver would still give away; `None` if it does not say.
    fn free(&mut self) -> Option<u64>;

    /// Takes a block of `bytes`; `None` if it is refused.
    fn take(&mut self, bytes: u64) -> Option<Self::Block>;

    /// Gives a block back.
    fn give(&mut self, block: Self::Block);
}

/// Blocks that are held until this is dropped.
pub struct Ballast<B: Bank> {
    bank: B,
    blocks: Vec<B::Block>,
}

/// Largest block: cards give memory in one piece or in many, and many are more likely to be there.
const LARGEST: u64 = 1 << 30;

/// Smallest block, in bytes: the granularity in which cards give memory away, and so the exactness of the cap.
pub const GRAIN: u64 = 2 << 20;

/// Whether a card can be made to refuse at the cap.
pub enum Weighed<B: Bank> {
    /// It refuses there, within [`GRAIN`].
    Held(Ballast<B>),
    /// It has less than that left in the first place: so many bytes.
    Short(u64),
    /// It can't be made to: it does not say what is free, or did not give what it said.
    Unable,
}

impl<B: Bank> Ballast<B> {
    /// Holds memory back until no more than `room` bytes are free.
    pub fn leaving(room: u64, bank: B) -> Weighed<B> {
        let mut ballast = Ballast { bank, blocks: Vec::new() };
        let Some(mut free) = ballast.bank.free() else { return Weighed::Unable };
        if free < room {
            return Weighed::Short(free);
        }
        let mut block = LARGEST;
        while free - room >= GRAIN {
            let bytes = block.min((free - room) / GRAIN * GRAIN);
            match ballast.bank.take(bytes) {
                Some(taken) => ballast.blocks.push(taken),
                None if bytes > GRAIN => block = bytes / 2 / GRAIN * GRAIN,
                None => return Weighed::Unable,
            }
            // What a block really cost is the driver's business: it is asked again.
            match ballast.bank.free() {
                Some(now) if now >= room => free = now,
                Some(_) => break,
                None => return Weighed::Unable,
            }
        }
        Weighed::Held(ballast)
    }

    /// What it is made of.
    pub fn bank(&mut self) -> &mut B {
        &mut self.bank
    }
}

impl<B: Bank> Drop for Ballast<B> {
    fn drop(&mut self) {
        for block in self.blocks.drain(..) {
            self.bank.give(block);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::cell::Cell;
    use std::rc::Rc;

    /// A card that gives memory in whole grains, and no block above `largest`.
    struct Card {
        free: Rc<Cell<u64>>,
        largest: u64,
        mute: bool,
    }

    impl Bank for Card {
        type Block = u64;

        fn free(&mut self) -> Option<u64> {
            (!self.mute).then(|| self.free.get())
        }

        fn take(&mut self, bytes: u64) -> Option<u64> {
            let bytes = bytes.div_ceil(GRAIN) * GRAIN;
            (bytes <= self.largest && bytes <= self.free.get()).then(|| {
                self.free.set(self.free.get() - bytes);
                bytes
            })
        }

        fn give(&mut self, block: u64) {
            self.free.set(self.free.get() + block);
        }
    }

    proptest! {
        #[test]
        fn what_is_left_is_the_room_within_a_grain(
            free in 0u64..200 << 30,
            room in 0u64..200 << 30,
            largest in GRAIN..4 << 30,
        ) {
            let left = Rc::new(Cell::new(free));
            let card = Card { free: left.clone(), largest, mute: false };
            match Ballast::leaving(room, card) {
                Weighed::Held(ballast) => {
                    prop_assert!(left.get() >= room && left.get() - room < GRAIN);
                    drop(ballast);
                    prop_assert_eq!(left.get(), free);
                }
                Weighed::Short(bytes) => prop_assert!(bytes == free && free < room),
                Weighed::Unable => prop_assert!(false, "the card said what was free and gave it"),
            }
        }
    }

    #[test]
    fn a_card_that_does_not_say_or_does_not_give_can_not_be_weighed() {
        let left = Rc::new(Cell::new(8 << 30));
        let card = |largest, mute| Card { free: left.clone(), largest, mute };
        assert!(matches!(Ballast::leaving(1 << 30, card(u64::MAX, true)), Weighed::Unable));
        assert!(matches!(Ballast::leaving(1 << 30, card(GRAIN - 1, false)), Weighed::Unable));
        assert_eq!(left.get(), 8 << 30, "what was taken is given back");
    }
}
