use super::*;

/// The same file kept in the simplest way: two whole copies.
#[derive(Default)]
struct Model {
    now: Vec<u8>,
    durable: Vec<u8>,
    /// Bytes of `durable` that were written over or cut off since the last sync.
    touched: Vec<bool>,
}

impl Model {
    fn touch(&mut self, start: usize, end: usize) {
        for at in start..end.min(self.durable.len()) {
            self.touched[at] = true;
        }
    }

    fn write_at(&mut self, offset: usize, bytes: &[u8]) {
        let end = offset + bytes.len();
        self.touch(offset.min(self.now.len()), end);
        self.now.resize(self.now.len().max(end), 0);
        self.now[offset..end].copy_from_slice(bytes);
    }

    fn set_len(&mut self, len: usize) {
        self.touch(len.min(self.now.len()), usize::MAX);
        self.now.resize(len, 0);
    }

    fn sync(&mut self) {
        self.durable = self.now.clone();
        self.touched = vec![false; self.now.len()];
    }
}

fn bytes(state: &FileState) -> Vec<u8> {
    state.content.range(0, usize::MAX)
}

fn random_bytes(random: &mut Random, most: usize) -> Vec<u8> {
    let mut bytes = vec![0; 1 + random.below(most)];
    random.fill(&mut bytes);
    bytes
}

#[test]
fn durable_bytes_are_those_of_the_last_sync() {
    for seed in 0..200 {
        let mut random = Random::of(seed, 0);
        let (mut state, mut model) = (FileState::default(), Model::default());
        for _ in 0..60 {
            let at = random.below(model.now.len() + 2);
            match random.below(8) {
                0 => {
                    state.set_len(at);
                    model.set_len(at);
                }
                1 => {
                    state.sync();
                    model.sync();
                }
                2 | 3 => {
                    let bytes = random_bytes(&mut random, 1500);
                    state.write_at(at, &bytes);
                    model.write_at(at, &bytes);
                }
                _ => {
                    let bytes = random_bytes(&mut random, 900);
                    state.write_at(state.len(), &bytes);
                    model.write_at(model.now.len(), &bytes);
                }
            }
            assert_eq!(bytes(&state), model.now, "seed={seed}");
            assert_eq!(bytes(&state.durable()), model.durable, "seed={seed}");
            for cut in 0..4 {
                let torn = bytes(&state.torn(&mut Random::of(seed, cut)));
                for (i, byte) in model.durable.iter().enumerate() {
                    if !model.touched[i] {
                        assert_eq!(torn.get(i), Some(byte), "seed={seed} cut={cut} at={i}");
                    }
                }
                assert!(torn.len() <= model.now.len().max(model.durable.len()));
            }
        }
    }
}

#[test]
fn an_unsynced_append_is_found_whole_short_zeroed_and_garbled() {
    let mut state = FileState::default();
    state.write_at(0, &[1; 700]);
    state.sync();
    state.write_at(700, &[2; 2000]);
    let [
        mut whole,
        mut none,
        mut short,
        mut zeros,
        mut garbage,
        mut mixed,
    ] = [false; 6];
    for seed in 0..300 {
        let torn = bytes(&state.torn(&mut Random::of(seed, 1)));
        assert_eq!(torn[..700], [1; 700]);
        let tail = &torn[700..];
        let count = |f: fn(u8) -> bool| tail.iter().filter(|b| f(**b)).count();
        let (twos, zero, other) = (count(|b| b == 2), count(|b| b == 0), count(|b| b > 2));
        whole |= twos == 2000;
        none |= tail.is_empty();
        short |= (1..2000).contains(&tail.len());
        zeros |= zero >= 1000;
        garbage |= other > 1000;
        mixed |= twos >= 400 && zero >= 400;
    }
    assert_eq!([whole, none, short, zeros, garbage, mixed], [true; 6]);
}

#[test]
fn an_unsynced_overwrite_is_found_new_old_and_garbled_sector_by_sector() {
    let mut state = FileState::default();
    state.write_at(0, &[1; 4096]);
    state.sync();
    state.write_at(100, &[2; 2000]);
    let [mut new, mut old, mut mixed, mut garbage] = [false; 4];
    for seed in 0..300 {
        let torn = bytes(&state.torn(&mut Random::of(seed, 1)));
        assert_eq!(torn.len(), 4096);
        assert_eq!(torn[..100], [1; 100]);
        assert_eq!(torn[2100..], [1; 1996]);
        for part in [
            &torn[100..512],
            &torn[512..1024],
            &torn[1024..1536],
            &torn[1536..2048],
        ] {
            let same = part.iter().all(|b| *b == part[0]);
            garbage |= !same;
        }
        let twos = torn.iter().filter(|b| **b == 2).count();
        let ones = torn.iter().filter(|b| **b == 1).count();
        new |= twos == 2000;
        old |= ones == 4096;
        mixed |= twos > 0 && twos < 2000 && twos + ones == 4096;
    }
    assert_eq!([new, old, mixed, garbage], [true; 4]);
}

#[test]
fn an_unsynced_shortening_happened_or_did_not() {
    let mut state = FileState::default();
    state.write_at(0, &[1; 1000]);
    state.sync();
    state.set_len(300);
    let lengths: Vec<usize> = (0..50)
        .map(|s| bytes(&state.torn(&mut Random::of(s, 1))).len())
        .collect();
    assert!(lengths.contains(&300) && lengths.contains(&1000));
    assert!(lengths.iter().all(|len| [300, 1000].contains(len)));
    state.sync();
    assert_eq!(bytes(&state.torn(&mut Random::of(0, 1))), [1; 300]);
}

#[test]
fn what_a_failed_sync_dropped_stays_off_the_disk_until_it_is_written_again() {
    let mut state = FileState::default();
    state.write_at(0, &[1; 600]);
    state.sync();
    state.write_at(600, &[2; 1000]);
    state.lose_unsynced();
    let read = bytes(&state);
    assert_eq!(read[599..601], [1, 2]);
    assert_eq!(read.len(), 1600);
    state.write_at(1600, &[3; 100]);
    state.sync();
    let durable = bytes(&state.durable());
    assert_eq!(durable[..600], [1; 600]);
    assert_eq!(durable[600..1600], [0; 1000]);
    assert_eq!(durable[1600..], [3; 100]);
    for seed in 0..50 {
        assert_eq!(bytes(&state.torn(&mut Random::of(seed, 1))), durable);
    }
    // Written again, the sector is as any other.
    state.write_at(600, &[4; 1000]);
    state.sync();
    assert_eq!(bytes(&state.durable()), bytes(&state));
}

#[test]
fn a_lost_overwrite_leaves_the_old_bytes() {
    let mut state = FileState::default();
    state.write_at(0, &[1; 2048]);
    state.sync();
    state.write_at(0, &[2; 1024]);
    state.lose_unsynced();
    state.sync();
    assert_eq!(bytes(&state), [[2; 1024], [1; 1024]].concat());
    assert_eq!(bytes(&state.durable()), [1; 2048]);
    // Cut off and lengthened, the lost bytes are no longer the file's.
    state.set_len(0);
    state.sync();
    state.write_at(0, &[5; 10]);
    state.sync();
    assert_eq!(bytes(&state.durable()), [5; 10]);
}
