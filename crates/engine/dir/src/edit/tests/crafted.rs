//! Many names of one hash.

use extant_ondisk::hash::{HashVersion, dirhash};

use super::*;

/// Names of 255 bytes that share one legacy hash: all bytes but the last are tried, and the last is computed.
///
/// The last step is `hash = older + (newer ^ byte * 7152373)`, minus 0x7FFFFFFF if the top bit is set. Both
/// cases are solved for the byte.
fn colliding(count: usize) -> Vec<Vec<u8>> {
    const FACTOR: u32 = 7_152_373;
    // The factor's inverse modulo 2^32, by Newton's method: each step doubles the number of correct bits.
    let inverse = (0..5).fold(FACTOR, |x, _| x.wrapping_mul(2u32.wrapping_sub(FACTOR.wrapping_mul(x))));
    let step = |(newer, older): (u32, u32), byte: u8| {
        let h = older.wrapping_add(newer ^ (byte as i8 as u32).wrapping_mul(FACTOR));
        (if h & 0x8000_0000 != 0 { h.wrapping_sub(0x7FFF_FFFF) } else { h }, newer)
    };
    let prefix = [b'p'; 249];
    let begin = prefix.iter().fold((0x12A3_FE2Du32, 0x37AB_E8F9u32), |state, byte| step(state, *byte));
    let wanted = 0x2345_6789u32;
    let letters = || (b'!'..=b'~').filter(|byte| *byte != b'/');
    let mut names = Vec::new();
    for number in 0.. {
        // Three letters from the number, and two to try with it.
        let three: [u8; 3] =
            [number / 8836 % 94, number / 94 % 94, number % 94].map(|digit: u32| digit as u8 + b'!');
        if three.contains(&b'/') {
            continue;
        }
        let state = three.iter().fold(begin, |state, byte| step(state, *byte));
        for a in letters() {
            let state = step(state, a);
            for b in letters() {
                let (newer, older) = step(state, b);
                for h in [wanted, wanted.wrapping_add(0x7FFF_FFFF)] {
                    let byte = (h.wrapping_sub(older) ^ newer).wrapping_mul(inverse) as i32;
                    let Ok(byte) = i8::try_from(byte) else { continue };
                    let name = [&prefix[..], &three, &[a, b, byte as u8]].concat();
                    let hash = dirhash(HashVersion::Legacy, &[1, 2, 3, 4], &name).unwrap().hash;
                    if hash == wanted << 1 && !matches!(byte as u8, 0 | b'/') {
                        names.push(name);
                    }
                }
                if names.len() == count {
                    return names;
                }
            }
        }
    }
    unreachable!()
}

#[test]
fn many_names_of_one_hash_fill_many_leaves() {
    let names = colliding(16);
    let cases = [(0, 64 << 20), (300, 0), (300, 64 << 20)]
        .map(|(before, limit)| [(before, limit, false), (before, limit, true)]);
    for (before, limit, has_hints) in cases.into_iter().flatten() {
        let give_hints = |toy: &Toy, cache: &mut DirCache| {
            if has_hints {
                toy.editor(cache).prefetch_names(names.iter().map(Vec::as_slice));
            }
        };
        let toy = Toy::new(Like { version: HashVersion::Legacy, ..Like::default() });
        let (mut cache, mut model) = (DirCache::new(limit).with_filters(8 << 20), Model::new());
        for number in 0..before {
            insert(&toy, &mut cache, &mut model, &name(number, 120), number + 20);
        }
        give_hints(&toy, &mut cache);
        for (ino, name) in (5000..).zip(&names) {
            insert(&toy, &mut cache, &mut model, name, ino);
            judge(&toy, &mut cache, &model);
        }
        give_hints(&toy, &mut cache);
        for name in &names {
            let again = toy.editor(&mut cache).insert(name, Ino(1), FileType::Regular);
            assert!(matches!(again, Err(EditFault::Exists)));
        }
        assert!(toy.len.get() > 6, "several leaves of one hash");
        let hints: BTreeSet<_> = listed(&toy, 3, || ()).into_iter().collect();
        assert_eq!(hints.len(), model.len() + 2);
        // In an order that empties leaves in the middle, and refills them.
        for round in 0..3 {
            give_hints(&toy, &mut cache);
            for name in names.iter().skip(round).step_by(3) {
                remove(&toy, &mut cache, &mut model, name);
                judge(&toy, &mut cache, &model);
            }
            for (ino, name) in (6000..).zip(names.iter().skip(round).step_by(6)) {
                insert(&toy, &mut cache, &mut model, name, ino);
                judge(&toy, &mut cache, &model);
            }
        }
        for name in model.keys().cloned().collect::<Vec<_>>() {
            remove(&toy, &mut cache, &mut model, &name);
        }
        judge(&toy, &mut cache, &model);
        assert_eq!(toy.len.get(), 1);
    }
}
