//! Renewal of a tenant's dictionary: it is rebuilt with only the definitions that the partitions in memory need.

use std::ops::DerefMut;

use foldhash::fast::FixedState;
use hashbrown::HashMap;
use proto::Importer;
use roaring::RoaringBitmap;

use crate::memory::partition::Partition;
use crate::memory::tenant_dictionary::{ROOT, TenantDictionary};

impl TenantDictionary {
    /// Rebuilds the dictionary with only the definitions that these partitions need, and renumbers the partitions.
    pub(crate) fn renew(&mut self, generation: u64, partitions: &mut [impl DerefMut<Target = Partition>]) {
        let mut new = Self::new(generation);
        let mut importer = Importer::new(&self.dictionary);
        let mut nodes: HashMap<u32, u32, FixedState> = HashMap::default();
        nodes.insert(ROOT, ROOT);
        let needed = partitions.iter().fold(RoaringBitmap::new(), |all, partition| all | partition.stacks());
        for (hash, node) in self.stacks().filter(|(_, node)| needed.contains(*node)) {
            let locations: Vec<u32> =
                self.stack(node).map(|location| importer.location(&mut new.dictionary, location)).collect();
            nodes.insert(node, new.add_stack(hash, &locations));
        }
        for partition in partitions {
            let sets: Vec<u32> = partition
                .attribute_sets
                .as_slice()
                .iter()
                .map(|&set| importer.attributes(&mut new.dictionary, set))
                .collect();
            partition.move_to(&mut new, |node| nodes.get(&node).copied().unwrap_or(ROOT), sets);
        }
        self.replace_by(new);
    }
}

#[cfg(test)]
mod tests {
    use proto::dictionary::stack_hash;
    use proto::{Dictionary, Line, Location};

    use super::*;

    #[test]
    fn a_rebuilt_dictionary_does_not_know_nodes_of_earlier_batches() {
        let mut batch = Dictionary::default();
        let function = batch.intern_function(proto::Function::default());
        let lines = [Line { function, line: 1, column: 0 }].into();
        let location = batch.intern_location(Location::Lines { mapping_file: 0, frame_type: 0, lines });
        batch.intern_stack(stack_hash(&[batch.location_hash(location)]), Some(&[location]));
        let mut shared = TenantDictionary::new(1);
        let before = shared.nodes_of(&batch, |_node| true);
        assert_eq!(shared.current(&before), Some(&[Some(ROOT), None][..]));
        let node = shared.import_stack(&mut Importer::new(&batch), &batch, 1);
        let nodes = shared.nodes_of(&batch, |_node| true);
        assert_eq!(shared.current(&nodes), Some(&[Some(ROOT), node][..]));
        let mut partitions: [Box<Partition>; 0] = [];
        shared.renew(2, &mut partitions);
        assert_eq!(shared.current(&nodes), None);
    }
}
