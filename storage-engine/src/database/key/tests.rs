use super::*;

#[test]
fn every_key_of_a_partition_names_it_and_is_in_its_range() {
    let time_ns = 1_790_000_000_000_000_000;
    for tier in Tier::ALL {
        let partition = PartitionKey::of(tier, 3, 7, time_ns);
        assert!(partition.start_ns() < time_ns && time_ns <= partition.end_ns());
        assert_eq!(PartitionKey::of_window(tier, 3, 7, tier.window_of(time_ns)), partition);
        let keys = [
            partition.series_block(1),
            partition.dictionary_block(2),
            partition.chunk(Section::Events, u32::MAX, u32::MAX, u64::MAX),
            partition.head(1, 2, 3),
            partition.batch_id(BatchId(u128::MAX)),
        ];
        for key in keys {
            assert_eq!(PartitionKey::of_key(&key), Some(partition));
            assert!(partition.prefix() <= key && key < partition.end());
        }
        let next = PartitionKey::of(tier, 3, 0, partition.end_ns() + 1);
        assert!(partition.end() <= PartitionKey { tenant: 8, ..partition }.prefix());
        assert!(PartitionKey { tenant: 8, ..partition }.end() <= next.prefix());
    }
    assert_eq!(PartitionKey::of_key(&tenant(1)), None);
    let chunk = PartitionKey::of(Tier::Raw, 0, 1, time_ns).chunk(Section::Chunks, 5, 6, 7);
    let (section, rest) = PartitionKey::section_of(&chunk).unwrap();
    let (series, window, index) = two_numbers(rest).unwrap();
    assert_eq!((section, series, window, index), (Section::Chunks, 5, 6, 7_u64.to_be_bytes().as_slice()));
}

#[test]
fn a_stale_key_reads_back() {
    let key = StaleKey { tier: Tier::Day, class: 1, window: 2, tenant: 3, series: u32::MAX };
    assert_eq!(StaleKey::read(&key.bytes()), Some(key));
    assert_eq!(StaleKey::read(&key.bytes()[1..]), None);
}
