use proptest::prelude::*;

use super::*;

fn any_record() -> impl Strategy<Value = Record> {
    let bytes = || prop::collection::vec(any::<u8>(), 0..200).prop_map(Bytes::from);
    (bytes(), any::<u32>(), any::<i64>(), bytes()).prop_map(|(key, schema, event_time_ms, payload)| Record {
        key,
        schema,
        event_time_ms,
        payload,
    })
}

fn producer() -> Producer {
    Producer { source: "import:jobs.csv".into(), epoch: 3 }
}

proptest! {
    #[test]
    fn any_batch_reads_back(records in prop::collection::vec(any_record(), 1..40), base in 0..u64::MAX / 2) {
        let (header, frame) = Body::encode(&records).seal(base, &producer(), 9);
        prop_assert_eq!(BatchHeader::from_key(&header.to_key()), Some(header));
        prop_assert_eq!(header.max_time_ms, records.iter().map(|r| r.event_time_ms).max().unwrap());
        let batch = decode(&header, &frame).unwrap();
        prop_assert_eq!((batch.producer, batch.first_seq), (producer(), 9));
        let offsets: Vec<_> = batch.records.iter().map(|stored| stored.offset).collect();
        prop_assert_eq!(offsets, (base..header.end()).collect::<Vec<_>>());
        prop_assert_eq!(batch.records.into_iter().map(|stored| stored.record).collect::<Vec<_>>(), records);
    }
}

fn sample() -> (BatchHeader, Vec<u8>) {
    let record = |i: u8| Record {
        key: Bytes::from_static(b"cluster/job"),
        schema: 1,
        event_time_ms: i.into(),
        payload: Bytes::from(vec![i; 30]),
    };
    Body::encode(&(0..60).map(record).collect::<Vec<_>>()).seal(7, &producer(), 0)
}

#[test]
fn every_flipped_bit_is_noticed() {
    let (header, frame) = sample();
    assert_eq!(frame[CHECKED_FROM], ZSTD, "the sample is compressed, as most batches are");
    for position in 0..frame.len() * 8 {
        let mut damaged = frame.clone();
        damaged[position / 8] ^= 1 << (position % 8);
        assert!(decode(&header, &damaged).is_err(), "bit {position}");
    }
}

#[test]
fn a_frame_under_another_key_is_noticed() {
    let (header, frame) = sample();
    let moved = BatchHeader { base: 8, ..header };
    assert!(matches!(decode(&moved, &frame), Err(BadFrame::Corrupt(_))));
    assert!(matches!(decode(&header, &frame[..frame.len() - 1]), Err(BadFrame::Corrupt(_))));
}

#[test]
fn a_newer_frame_is_told_apart_from_a_damaged_one() {
    let (header, mut frame) = sample();
    frame[0] = VERSION + 1;
    assert!(matches!(decode(&header, &frame), Err(BadFrame::Newer(2))));
}
