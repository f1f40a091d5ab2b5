use super::*;

const FILE: u8 = 0;

fn made(size: u64) -> Model {
    let mut model = Model::default();
    model.apply(&Op::Create { file: FILE }).unwrap();
    model.apply(&Op::Write { file: FILE, pos: 0, len: size, seed: 7 }).unwrap();
    model
}

fn bytes(model: &mut Model, pos: u64, len: u64) -> Vec<u8> {
    match model.apply(&Op::Read { file: FILE, pos, len }) {
        Ok(Answer::Bytes(bytes)) => bytes,
        other => panic!("{other:?}"),
    }
}

fn fallocate(model: &mut Model, mode: Fallocate, pos: u64, len: u64) -> Result<Answer, Errno> {
    model.apply(&Op::Fallocate { file: FILE, mode, pos, len })
}

fn written(range: Range<u64>) -> Vec<u8> {
    range.map(|pos| byte_at(7, pos)).collect()
}

#[test]
fn what_is_cut_off_comes_back_as_zeros() {
    let mut model = made(5000);
    model.apply(&Op::Truncate { file: FILE, size: 4090 }).unwrap();
    model.apply(&Op::Truncate { file: FILE, size: 5000 }).unwrap();
    assert_eq!(bytes(&mut model, 0, 9000), [written(0..4090), vec![0; 910]].concat());
}

#[test]
fn collapse_moves_down_and_insert_up() {
    let mut model = made(12_000);
    fallocate(&mut model, Fallocate::Collapse, 4096, 4096).unwrap();
    assert_eq!(bytes(&mut model, 0, 12_000), [written(0..4096), written(8192..12_000)].concat());
    fallocate(&mut model, Fallocate::Insert, 4096, 8192).unwrap();
    let wanted = [written(0..4096), vec![0; 8192], written(8192..12_000)].concat();
    assert_eq!(bytes(&mut model, 0, 20_000), wanted);
    assert_eq!(fallocate(&mut model, Fallocate::Collapse, 0, 1024), Err(Errno::EINVAL));
    assert_eq!(
        fallocate(&mut model, Fallocate::Collapse, 12_288, 4096),
        Err(Errno::EINVAL),
        "it has the end"
    );
    let far = model.limits().max_size() - 8192;
    assert_eq!(fallocate(&mut model, Fallocate::Insert, 0, far & !4095), Err(Errno::EFBIG));
}

#[test]
fn a_hole_is_zeros_and_stays_within_the_size() {
    let mut model = made(9000);
    fallocate(&mut model, Fallocate::Punch, 100, 5000).unwrap();
    fallocate(&mut model, Fallocate::Punch, 8999, 1 << 30).unwrap();
    let wanted = [written(0..100), vec![0; 5000], written(5100..8999), vec![0]].concat();
    assert_eq!(bytes(&mut model, 0, 10_000), wanted);
    fallocate(&mut model, Fallocate::ZeroKeep, 8000, 5000).unwrap();
    assert_eq!(model.size(FILE), Some(9000));
    fallocate(&mut model, Fallocate::Zero, 8000, 5000).unwrap();
    assert_eq!(model.size(FILE), Some(13_000));
}

#[test]
fn the_largest_sizes() {
    let mut model = made(1);
    let max = model.limits().max_size();
    let write = |pos, len| Op::Write { file: FILE, pos, len, seed: 7 };
    assert_eq!(model.apply(&write(max - 1, 10)), Ok(Answer::Count(1)));
    assert_eq!(model.apply(&write(max, 10)), Err(Errno::EFBIG));
    assert_eq!(model.apply(&write(max, 0)), Ok(Answer::Count(0)));
    assert_eq!(model.apply(&write(u64::MAX, 0)), Err(Errno::EINVAL));
    assert_eq!(model.apply(&Op::Truncate { file: FILE, size: max + 1 }), Err(Errno::EFBIG));
    assert_eq!(model.ranges(FILE).len(), 2);
    let bitmap = Limits { extents: false, ..Limits::default() };
    assert_eq!((bitmap.max_file_size(), max), (4_402_345_721_856, 17_592_186_040_320));
}

/// Holes are judged by their bytes: a subject may report more data than exists, but not less.
#[test]
fn holes_are_judged() {
    let mut model = made(0);
    model.apply(&Op::Write { file: FILE, pos: 8192, len: 4096, seed: 7 }).unwrap();
    model.apply(&Op::Truncate { file: FILE, size: 20_000 }).unwrap();
    let mut is_right = |whence, pos, answer| {
        let op = Op::Seek { file: FILE, whence, pos };
        let expected = model.apply(&op);
        model.judge(&op, &expected, &answer).is_ok()
    };
    let at = |pos| Ok(Answer::Place(pos));
    for (pos, right) in [(0, true), (8192, true), (8193, false), (20_000, false)] {
        assert_eq!(is_right(Whence::Data, 0, at(pos)), right, "data at {pos}");
    }
    assert!(!is_right(Whence::Data, 0, Err(Errno::ENXIO)));
    assert!(is_right(Whence::Data, 12_288, Err(Errno::ENXIO)));
    for (pos, right) in [(8191, false), (8192, false), (12_288, true), (20_000, true), (20_001, false)] {
        assert_eq!(is_right(Whence::Hole, 8192, at(pos)), right, "a hole at {pos}");
    }
    assert!(is_right(Whence::Hole, 20_000, Err(Errno::ENXIO)) && !is_right(Whence::Hole, 20_000, at(20_000)));
}
