//! Trees of every shape: wide, deep, long prefixes, the longest keys.

use super::*;

fn put(table: &Memtable, key: &[u8], seqno: u64) {
    table.insert(key, Update::Put(&seqno.to_le_bytes()), SeqNo(seqno), &KeepAll);
}

fn holds(table: &Memtable, key: &[u8], seqno: u64) -> bool {
    table.get(key, SeqNo::MAX) == Lookup::Found(Update::Put(&seqno.to_le_bytes()), SeqNo(seqno))
}

/// Checks that the keys in both directions are exactly `keys`, which ascend.
fn check_order(table: &Arc<Memtable>, keys: &[Vec<u8>]) {
    let mut cursor = table.cursor(KeyRange::all(), Direction::Ascending, SeqNo::MAX).unwrap();
    for key in keys {
        assert!(cursor.key() == Some(key.as_slice()), "ascending");
        cursor.advance().unwrap();
    }
    assert!(cursor.key().is_none());
    let mut cursor = table.cursor(KeyRange::all(), Direction::Descending, SeqNo::MAX).unwrap();
    for key in keys.iter().rev() {
        assert!(cursor.key() == Some(key.as_slice()), "descending");
        cursor.advance().unwrap();
    }
    assert!(cursor.key().is_none());
    let batch = &table.sorted(&[]).batches[0];
    assert!((0..batch.len()).all(|rank| batch.key(rank) == keys[rank]));
    assert_eq!(batch.len(), keys.len());
}

#[test]
fn nodes_of_every_width_hold_their_keys_with_and_without_prefix() {
    for prefix in [&b""[..], b"eight by", b"a prefix that is longer than a node has room for"] {
        let (table, mut rng) = (memtable(), Rng::new(5));
        let mut bytes: Vec<u8> = (0..=255).collect();
        for index in (1..bytes.len()).rev() {
            bytes.swap(index, usize::try_from(rng.below(index as u64 + 1)).unwrap());
        }
        let key = |byte: u8| [b"x", prefix, &[byte], b"tail"].concat();
        for (count, byte) in bytes.iter().enumerate() {
            put(&table, &key(*byte), u64::from(*byte) + 1);
            assert!(bytes[..=count].iter().all(|b| holds(&table, &key(*b), u64::from(*b) + 1)));
            assert!(
                bytes[count + 1..]
                    .iter()
                    .all(|b| { table.get(&key(*b), SeqNo::MAX) == Lookup::Absent })
            );
        }
        put(&table, &[b"x", prefix].concat(), 1000);
        let mut keys: Vec<_> = (0..=255).map(key).collect();
        keys.insert(0, [b"x", prefix].concat());
        check_order(&table, &keys);
        assert_eq!(table.get(b"x", SeqNo::MAX) == Lookup::Absent, !prefix.is_empty());
    }
}

#[test]
fn prefixes_are_split_at_every_place_of_nodes_of_every_width() {
    for width in [2, 5, 17, 60] {
        let long = b"0123456789abcdefghijklmnopqrstuvwxyz";
        for cut in 0..long.len() {
            let table = memtable();
            let mut keys: Vec<Vec<u8>> = (0..width).map(|b| [&long[..], &[b]].concat()).collect();
            keys.push(long[..cut].to_vec());
            keys.push([&long[..cut], b"\xffother"].concat());
            keys.push([&long[..cut / 2], b"\x00"].concat());
            for (seqno, key) in (1..).zip(&keys) {
                put(&table, key, seqno);
            }
            assert!((1..).zip(&keys).all(|(seqno, key)| holds(&table, key, seqno)));
            keys.sort_unstable();
            check_order(&table, &keys);
        }
    }
}

#[test]
fn keys_that_are_all_prefixes_of_each_other_make_a_deep_path() {
    let deepest = if cfg!(miri) { 60 } else { 20_000 };
    let keys: Vec<Vec<u8>> = (0..=deepest).map(|length| vec![b'a'; length]).collect();
    for shuffled in [false, true] {
        let (table, mut order) = (memtable(), (0..keys.len()).collect::<Vec<_>>());
        if shuffled {
            let mut rng = Rng::new(9);
            order.sort_by_cached_key(|_| rng.next_u64());
            // Random order visits long paths each time; a part of them is enough.
            order.truncate(deepest / 4);
        }
        for length in &order {
            put(&table, &keys[*length], *length as u64 + 1);
        }
        for length in order.iter().step_by(97) {
            assert!(holds(&table, &keys[*length], *length as u64 + 1));
        }
        order.sort_unstable();
        let keys: Vec<_> = order.iter().map(|length| keys[*length].clone()).collect();
        check_order(&table, &keys);
        let middle = &keys[keys.len() / 2];
        let range = KeyRange { lower: Bound::Excluded(middle.clone()), upper: Bound::Unbounded };
        let cursor = table.cursor(range, Direction::Ascending, SeqNo::MAX).unwrap();
        assert!(cursor.key() == Some(keys[keys.len() / 2 + 1].as_slice()));
    }
}

#[test]
fn the_longest_keys_and_values_fit() {
    let table = memtable();
    let value = vec![7; LARGE_VALUE_BYTES_MIN - 1];
    let mut keys = Vec::new();
    for (seqno, at) in (1..).zip([0, 1, 40, 30_000, KEY_BYTES_MAX - 1]) {
        let mut key = vec![b'k'; KEY_BYTES_MAX];
        key[at] = b'l';
        table.insert(&key, Update::Put(&value), SeqNo(seqno), &KeepAll);
        keys.push(key.clone());
        key.truncate(at);
        table.insert(&key, Update::Delete, SeqNo(seqno + 100), &KeepAll);
        keys.push(key);
    }
    for (key, seqno) in keys.iter().step_by(2).zip(1..) {
        assert!(table.get(key, SeqNo::MAX) == Lookup::Found(Update::Put(&value), SeqNo(seqno)));
    }
    for (key, seqno) in keys.iter().skip(1).step_by(2).zip(101..) {
        assert!(table.get(key, SeqNo::MAX) == Lookup::Found(Update::Delete, SeqNo(seqno)));
    }
    keys.sort_unstable();
    check_order(&table, &keys);
}

#[test]
#[should_panic(expected = "longer than its limit")]
fn longer_keys_are_refused() {
    put(&memtable(), &vec![0; KEY_BYTES_MAX + 1], 1);
}
