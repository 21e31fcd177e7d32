// Kafka's Java client as a member of a consumer group; group_members.py starts it and reads its output.
// Usage: JavaMember BOOTSTRAP GROUP TOPIC PROTOCOL INSTANCE. The protocol is classic or consumer; the instance - means
// no static membership. A topic that begins with ^ is a pattern, which the broker matches. The member leaves the group
// when its input ends.
//
//     assigned|revoked|lost MEMBER GENERATION 0,1,    read PARTITION OFFSET VALUE    uncommitted ERROR    closed

import java.time.Duration;
import java.util.Collection;
import java.util.List;
import java.util.Properties;
import java.util.stream.Collectors;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.RangeAssignor;
import org.apache.kafka.clients.consumer.RoundRobinAssignor;
import org.apache.kafka.clients.consumer.SubscriptionPattern;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.WakeupException;
import org.apache.kafka.common.serialization.StringDeserializer;

public class JavaMember {
    public static void main(String[] args) throws Exception {
        var text = new StringDeserializer();
        try (var consumer = new KafkaConsumer<>(settings(args), text, text)) {
            wakeAtEndOfInput(consumer);
            subscribe(consumer, args[2]);
            while (true) {
                var records = consumer.poll(Duration.ofMillis(100));
                records.forEach(record -> print("read " + record.partition() + " " + record.offset() + " " + record.value()));
                if (!records.isEmpty()) {
                    commit(consumer);
                }
            }
        } catch (WakeupException end) {
            print("closed");
        }
    }

    static void subscribe(KafkaConsumer<String, String> consumer, String topic) {
        if (topic.startsWith("^")) {
            consumer.subscribe(new SubscriptionPattern(topic.substring(1)), new Listener(consumer));
        } else {
            consumer.subscribe(List.of(topic), new Listener(consumer));
        }
    }

    static Properties settings(String[] args) {
        var settings = new Properties();
        settings.put("bootstrap.servers", args[0]);
        settings.put("group.id", args[1]);
        settings.put("group.protocol", args[3]);
        if (!args[4].equals("-")) {
            settings.put("group.instance.id", args[4]);
        }
        if (args[3].equals("classic")) { // in the new protocol these are settings of the broker
            settings.put("session.timeout.ms", "10000");
            settings.put("heartbeat.interval.ms", "500");
            settings.put("partition.assignment.strategy", List.of(RangeAssignor.class, RoundRobinAssignor.class));
        }
        settings.put("enable.auto.commit", "false");
        settings.put("auto.offset.reset", "earliest");
        settings.put("metadata.max.age.ms", "1000");
        return settings;
    }

    static void commit(KafkaConsumer<String, String> consumer) {
        try {
            consumer.commitSync();
        } catch (WakeupException end) {
            throw end;
        } catch (KafkaException error) { // a rebalance: the new owner of the partition reads the record again
            print("uncommitted " + error);
        }
    }

    static void wakeAtEndOfInput(KafkaConsumer<String, String> consumer) {
        var thread = new Thread(() -> {
            try {
                System.in.read();
            } catch (java.io.IOException error) {
                print("input " + error);
            }
            consumer.wakeup();
        });
        thread.setDaemon(true);
        thread.start();
    }

    static synchronized void print(String line) {
        System.out.println(line);
    }

    record Listener(KafkaConsumer<String, String> consumer) implements ConsumerRebalanceListener {
        @Override
        public void onPartitionsAssigned(Collection<TopicPartition> added) {
            report("assigned", added);
        }

        @Override
        public void onPartitionsRevoked(Collection<TopicPartition> removed) {
            report("revoked", removed);
        }

        @Override
        public void onPartitionsLost(Collection<TopicPartition> lost) {
            report("lost", lost);
        }

        private void report(String event, Collection<TopicPartition> partitions) {
            var numbers = partitions.stream().map(partition -> partition.partition() + ",").collect(Collectors.joining());
            var member = consumer.groupMetadata();
            print(event + " " + member.memberId() + " " + member.generationId() + " " + (numbers.isEmpty() ? "," : numbers));
        }
    }
}
