use super::*;

fn text(n: usize) -> Vec<u8> {
    (0..n)
        .map(|i| b"the quick brown fox "[i % 20] ^ u8::from(i % 97 == 0))
        .collect()
}

const WRITABLE: [CompressionType; 4] = [
    CompressionType::Snappy,
    CompressionType::Lz4,
    CompressionType::Lz4hc,
    CompressionType::Zstd,
];

#[test]
fn every_codec_gives_back_what_it_took() {
    for kind in WRITABLE {
        for n in [1, 100, 4096, 300_000] {
            let raw = text(n);
            let mut c = Compressor::new(kind, &CompressionOptions::default(), &[]).unwrap();
            let mut out = Vec::new();
            if c.compress(&raw, n + 1000, &mut out).unwrap() {
                assert_eq!(
                    decompress(kind, &out, None, 5, Vec::new()).unwrap(),
                    raw,
                    "{kind:?} {n}"
                );
            } else {
                panic!("{kind:?} {n} does not fit");
            }
        }
    }
}

#[test]
fn what_does_not_shrink_is_left_alone() {
    let mut x = 1u64;
    let noise: Vec<u8> = (0..4096)
        .map(|_| {
            x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (x >> 56) as u8
        })
        .collect();
    for kind in WRITABLE {
        let mut c = Compressor::new(kind, &CompressionOptions::default(), &[]).unwrap();
        assert!(
            !c.compress(&noise, 3584, &mut Vec::new()).unwrap(),
            "{kind:?}"
        );
        assert!(!c.compress(&noise, 1, &mut Vec::new()).unwrap(), "{kind:?}");
    }
}

#[test]
fn damage_is_an_error_and_never_a_bomb() {
    for kind in WRITABLE {
        let raw = text(5000);
        let mut c = Compressor::new(kind, &CompressionOptions::default(), &[]).unwrap();
        let mut out = Vec::new();
        assert!(c.compress(&raw, 5000, &mut out).unwrap());
        for i in 0..out.len() {
            for bit in 0..8 {
                let mut bad = out.clone();
                bad[i] ^= 1 << bit;
                // Without a checksum a flip may go unseen by the codec; it must only be bounded.
                if let Ok(got) = decompress(kind, &bad, None, 5, Vec::new()) {
                    assert!(got.len() <= 16_000_000);
                }
            }
        }
        assert!(decompress(kind, &[], None, 5, Vec::new()).is_err());
        assert!(
            decompress(
                kind,
                &[0xff, 0xff, 0xff, 0xff, 0x0f, 1, 2],
                None,
                5,
                Vec::new()
            )
            .is_err()
        );
    }
    assert_eq!(
        decompress(CompressionType::Xpress, &[1], None, 5, Vec::new())
            .unwrap_err()
            .kind(),
        orogen_base::ErrorKind::NotSupported
    );
}

#[test]
fn zstd_with_a_dictionary_needs_it_again() {
    let samples: Vec<Vec<u8>> = (0..200u32)
        .map(|i| format!("user-{i:05}:name=x{i};city=paris;").into_bytes())
        .collect();
    let lens: Vec<usize> = samples.iter().map(Vec::len).collect();
    let trained = train_dictionary(&samples.concat(), &lens, 1024).unwrap();
    assert!(!trained.is_empty());
    for dict in [trained, samples.concat()[..500].to_vec()] {
        let mut c =
            Compressor::new(CompressionType::Zstd, &CompressionOptions::default(), &dict).unwrap();
        let raw = b"user-90000:name=x90000;city=paris;user-90001:name=x90001;city=paris;";
        let mut out = Vec::new();
        assert!(c.compress(raw, 200, &mut out).unwrap());
        let dict = Dictionary::new(dict).unwrap();
        assert_eq!(
            decompress(CompressionType::Zstd, &out, Some(&dict), 5, Vec::new()).unwrap(),
            raw
        );
        assert!(decompress(CompressionType::Zstd, &out, None, 5, Vec::new()).is_err());
    }
}

#[test]
fn names_and_numbers_are_rocksdbs() {
    for kind in CompressionType::ALL {
        assert_eq!(CompressionType::from_u8(kind as u8), Some(kind));
        assert_eq!(CompressionType::by_name(kind.name()), Some(kind));
    }
    assert_eq!(CompressionType::from_u8(8), None);
    assert_eq!(
        CompressionType::by_name("kZSTD"),
        Some(CompressionType::Zstd)
    );
}

#[test]
fn what_must_be_compressed_is_also_where_it_does_not_shrink() {
    let mut x = 1u64;
    let noise: Vec<u8> = (0..5000)
        .map(|_| {
            x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (x >> 33) as u8
        })
        .collect();
    for kind in WRITABLE {
        let mut c = Compressor::new(kind, &CompressionOptions::default(), &[]).unwrap();
        let mut out = Vec::new();
        for raw in [&noise[..], &[], &noise[..1], &text(300_000)] {
            c.compress_always(raw, &mut out).unwrap();
            assert_eq!(decompressed_len(kind, &out).unwrap(), raw.len() as u64);
            assert_eq!(decompress(kind, &out, None, 5, Vec::new()).unwrap(), raw);
        }
        c.compress_always(&noise, &mut out).unwrap();
        assert!(out.len() > noise.len(), "{kind:?}");
        assert!(!c.compress(&noise, noise.len(), &mut out).unwrap());
    }
    let none = CompressionType::None;
    assert_eq!(decompressed_len(none, &noise).unwrap(), 5000);
    assert!(decompressed_len(CompressionType::Zstd, &[]).is_err());
    assert!(decompressed_len(CompressionType::Xpress, &noise).is_err());
}

#[test]
fn both_names_of_lz4_have_the_levels_of_both() {
    let text: Vec<u8> = (0..20_000_u32)
        .flat_map(|n| (n * n % 977).to_string().into_bytes())
        .collect();
    let at = |kind, level| {
        let options = CompressionOptions {
            level,
            ..CompressionOptions::default()
        };
        let mut out = Vec::new();
        let mut compressor = Compressor::new(kind, &options, b"").unwrap();
        compressor.compress_always(&text, &mut out).unwrap();
        out
    };
    let (fast, slow) = (CompressionType::Lz4, CompressionType::Lz4hc);
    for level in [i32::MIN, -30, -5, 0, 1, 9, 12] {
        assert_eq!(at(fast, level), at(slow, level), "{level}");
    }
    let default = DEFAULT_COMPRESSION_LEVEL;
    assert_eq!(at(fast, default), at(fast, -1));
    assert_eq!(at(slow, default), at(fast, 9));
    assert!(at(slow, default).len() < at(fast, default).len());
    assert!(at(fast, default).len() < at(fast, -30).len());
}

#[test]
fn lz4_takes_a_bound_that_is_more_than_its_lengths_go() {
    let raw = text(5000);
    let bounds = [6000, c_int_max() + 1, usize::MAX];
    for (is_hc, level) in [(false, 1), (true, 9)] {
        let mut state = lz4::State::new(is_hc).unwrap();
        for room in bounds {
            let mut out = Vec::with_capacity(6000);
            assert!(state.compress(&raw, level, room, &mut out), "{room}");
        }
        let mut out = Vec::with_capacity(6000);
        assert!(!state.compress(&raw, level, 10, &mut out));
    }
}

#[test]
fn what_lz4_had_before_does_not_show() {
    let mut draw = 1_u64;
    let mut next = move || {
        draw = draw.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
        draw >> 33
    };
    // Of few letters, so that places of other inputs would be taken for matches; short ones, of which many are
    // compared with the same places, and some that make it begin anew.
    let inputs: Vec<Vec<u8>> = (0..600)
        .map(|_| {
            let len = [16, 100, 700, 3000, 4095, 4096, 5000, 70_000][next() as usize % 8];
            (0..next() % len + 1).map(|_| (next() % 5) as u8).collect()
        })
        .collect();
    for level in [-3, -1, 1, 2, 3, 9, 10, 12] {
        let options = CompressionOptions {
            level,
            ..CompressionOptions::default()
        };
        let new = || Compressor::new(CompressionType::Lz4, &options, b"").unwrap();
        let mut kept = new();
        let few = if level > 3 { 60 } else { 600 };
        for (n, raw) in inputs.iter().take(few).enumerate() {
            let (mut out, mut expected) = (Vec::new(), Vec::new());
            // Some do not fit: the search ends within them.
            let limit = if n % 7 == 3 {
                raw.len() / 8
            } else {
                usize::MAX / 2
            };
            let fits = kept.compress(raw, limit.min(2 * raw.len() + 64), &mut out);
            let fits_new = new().compress(raw, limit.min(2 * raw.len() + 64), &mut expected);
            assert_eq!(fits.unwrap(), fits_new.unwrap(), "{level} {n}");
            assert!(out == expected, "{level} {n}");
        }
    }
}

fn c_int_max() -> usize {
    usize::try_from(i32::MAX).unwrap()
}

#[test]
fn samples_that_look_like_a_trained_dictionary_are_none() {
    let mut sample = TRAINED_MAGIC.to_vec();
    sample.extend([0; 200]);
    let samples = vec![sample; 64];
    let options = CompressionOptions {
        max_dict_bytes: 1024,
        ..CompressionOptions::default()
    };
    assert!(make_dictionary(&samples, &options).unwrap().is_empty());
    let others = vec![text(200); 64];
    assert_eq!(make_dictionary(&others, &options).unwrap().len(), 1024);
}

#[test]
fn frames_of_zstd_have_the_checksum_that_is_asked_for_with_a_dictionary_too() {
    let raw = text(3000);
    for dict in [&[][..], &text(500)] {
        let len = |checksum| {
            let options = CompressionOptions {
                checksum,
                ..CompressionOptions::default()
            };
            let mut c = Compressor::new(CompressionType::Zstd, &options, dict).unwrap();
            let mut out = Vec::new();
            assert!(c.compress(&raw, 3000, &mut out).unwrap());
            out.len()
        };
        assert_eq!(len(true), len(false) + 4);
    }
}
