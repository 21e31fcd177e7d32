// Transactions with Kafka's Java client; test_transactions.py checks the output.
// Usage: JavaTransactions BOOTSTRAP INPUT OUTPUT. Both topics must exist, with two partitions each.

import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.TreeSet;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

public class JavaTransactions {
    static String bootstrap;

    public static void main(String[] args) throws Exception {
        bootstrap = args[0];
        commitAndAbort(args[1]);
        transform(args[1], args[2]);
        zombie(args[2]);
        timeout(args[2]);
        admin();
    }

    /** Runs fifteen transactions without a pause, and aborts every third. */
    static void commitAndAbort(String topic) throws Exception {
        try (var producer = producer(topic + "-first", 60_000)) {
            producer.initTransactions();
            for (int number = 0; number < 15; number++) {
                producer.beginTransaction();
                for (int partition = 0; partition < 2; partition++) {
                    producer.send(new ProducerRecord<>(topic, partition, "k", number + "." + partition));
                }
                if (number % 3 == 2) {
                    producer.flush();
                    producer.abortTransaction();
                } else {
                    producer.commitTransaction();
                }
            }
        }
        System.out.println("committed " + String.join(" ", read(topic, "read_committed", 20)));
        System.out.println("all " + read(topic, "read_uncommitted", 30).size());
    }

    /** Consumes, transforms and produces. Aborts every second transaction, and reads its records again. */
    static void transform(String input, String output) throws Exception {
        Properties settings = consumerSettings("read_committed");
        settings.put("group.id", input + "-group");
        settings.put("auto.offset.reset", "earliest");
        settings.put("max.poll.records", "7");
        int aborted = 0;
        try (var producer = producer(output + "-transform", 60_000);
                var consumer = new KafkaConsumer<>(settings, new StringDeserializer(), new StringDeserializer())) {
            producer.initTransactions();
            consumer.subscribe(List.of(input));
            int left = 20;
            int transactions = 0;
            while (left > 0) {
                var records = consumer.poll(Duration.ofSeconds(10));
                if (records.isEmpty()) {
                    continue;
                }
                producer.beginTransaction();
                Map<TopicPartition, OffsetAndMetadata> offsets = new HashMap<>();
                Map<TopicPartition, Long> first = new HashMap<>();
                for (ConsumerRecord<String, String> record : records) {
                    var partition = new TopicPartition(record.topic(), record.partition());
                    first.putIfAbsent(partition, record.offset());
                    offsets.put(partition, new OffsetAndMetadata(record.offset() + 1));
                    producer.send(new ProducerRecord<>(output, record.partition(), "k", "t" + record.value()));
                }
                producer.sendOffsetsToTransaction(offsets, consumer.groupMetadata());
                if (transactions++ % 2 == 0) {
                    producer.abortTransaction();
                    first.forEach(consumer::seek);
                    aborted++;
                } else {
                    producer.commitTransaction();
                    left -= records.count();
                }
            }
            long committed = 0;
            var partitions = new TreeSet<Integer>();
            for (int partition = 0; partition < 2; partition++) {
                var topicPartition = new TopicPartition(input, partition);
                committed += consumer.committed(java.util.Set.of(topicPartition)).get(topicPartition).offset();
                partitions.add(partition);
            }
            System.out.println("offsets committed " + (committed > 0) + " in " + partitions);
        }
        System.out.println("transformed " + String.join(" ", read(output, "read_committed", 20)));
        System.out.println("aborted some " + (aborted > 0));
    }

    static void zombie(String topic) throws Exception {
        try (var old = producer(topic + "-zombie", 60_000); var current = producer(topic + "-zombie", 60_000)) {
            old.initTransactions();
            old.beginTransaction();
            old.send(new ProducerRecord<>(topic, 0, "k", "zombie")).get();
            current.initTransactions();
            current.beginTransaction();
            current.send(new ProducerRecord<>(topic, 0, "k", "young")).get();
            try {
                old.send(new ProducerRecord<>(topic, 0, "k", "late"));
                old.commitTransaction();
                System.out.println("zombie committed");
            } catch (KafkaException error) {
                System.out.println("zombie " + cause(error));
            }
            current.commitTransaction();
        }
        System.out.println("young " + read(topic, "read_committed", 21).contains("young"));
    }

    static void timeout(String topic) throws Exception {
        try (var producer = producer(topic + "-slow", 4_000)) {
            producer.initTransactions();
            producer.beginTransaction();
            producer.send(new ProducerRecord<>(topic, 1, "k", "slow")).get();
            Thread.sleep(10_000);
            try {
                producer.commitTransaction();
                System.out.println("slow committed");
            } catch (KafkaException error) {
                System.out.println("slow " + cause(error));
            }
        }
        System.out.println("after slow " + read(topic, "read_committed", 21).size());
    }

    static void admin() throws Exception {
        try (var admin = Admin.create(Map.of("bootstrap.servers", bootstrap))) {
            for (var listing : admin.listTransactions().all().get()) {
                var state = admin.describeTransactions(List.of(listing.transactionalId())).all().get();
                var description = state.get(listing.transactionalId());
                System.out.println("listed " + listing.transactionalId() + " " + description.state() + " " + description.producerEpoch()
                        + " " + description.transactionStartTimeMs().isPresent() + " " + description.topicPartitions().size());
            }
        }
    }

    static String cause(Throwable error) {
        return error.getCause() == null ? error.getClass().getSimpleName()
                : error.getClass().getSimpleName() + " by " + error.getCause().getClass().getSimpleName();
    }

    static List<String> read(String topic, String isolation, int count) {
        List<String> values = new ArrayList<>();
        var deserializer = new StringDeserializer();
        try (var consumer = new KafkaConsumer<>(consumerSettings(isolation), deserializer, deserializer)) {
            var partitions = List.of(new TopicPartition(topic, 0), new TopicPartition(topic, 1));
            consumer.assign(partitions);
            consumer.seekToBeginning(partitions);
            long deadline = System.currentTimeMillis() + 20_000;
            while (values.size() < count && System.currentTimeMillis() < deadline) {
                consumer.poll(Duration.ofMillis(500)).forEach(record -> values.add(record.value()));
            }
            consumer.poll(Duration.ofMillis(500)).forEach(record -> values.add(record.value()));
        }
        return values;
    }

    static Properties consumerSettings(String isolation) {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", bootstrap);
        settings.put("enable.auto.commit", "false");
        settings.put("isolation.level", isolation);
        return settings;
    }

    static KafkaProducer<String, String> producer(String id, int timeoutMs) {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", bootstrap);
        settings.put("transactional.id", id);
        settings.put("transaction.timeout.ms", timeoutMs);
        var serializer = new StringSerializer();
        return new KafkaProducer<>(settings, serializer, serializer);
    }
}
