// Kafka's own Java client as a member of a consumer group; group_members.py starts it and reads what it prints.
// Usage: JavaMember BOOTSTRAP GROUP TOPIC PROTOCOL INSTANCE. The protocol is classic or consumer; an instance of - is
// none. A topic that begins with ^ is a pattern, which the broker matches. It leaves when its input ends.
//
//     assigned|revoked|lost MEMBER GENERATION 0,1,    read PARTITION OFFSET VALUE    uncommitted WHY    closed

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
            wakeAtTheEnd(consumer);
            subscribe(consumer, args[2]);
            while (true) {
                var records = consumer.poll(Duration.ofMillis(100));
                records.forEach(one -> say("read " + one.partition() + " " + one.offset() + " " + one.value()));
                if (!records.isEmpty()) {
                    commit(consumer);
                }
            }
        } catch (WakeupException end) {
            say("closed");
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
        if (args[3].equals("classic")) { // in the new protocol the broker says these
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
        } catch (KafkaException error) { // a rebalance: whoever has the partition then reads it again
            say("uncommitted " + error);
        }
    }

    static void wakeAtTheEnd(KafkaConsumer<String, String> consumer) {
        var thread = new Thread(() -> {
            try {
                System.in.read();
            } catch (java.io.IOException gone) {
                say("input " + gone);
            }
            consumer.wakeup();
        });
        thread.setDaemon(true);
        thread.start();
    }

    static synchronized void say(String line) {
        System.out.println(line);
    }

    record Listener(KafkaConsumer<String, String> consumer) implements ConsumerRebalanceListener {
        @Override
        public void onPartitionsAssigned(Collection<TopicPartition> given) {
            tell("assigned", given);
        }

        @Override
        public void onPartitionsRevoked(Collection<TopicPartition> taken) {
            tell("revoked", taken);
        }

        @Override
        public void onPartitionsLost(Collection<TopicPartition> lost) {
            tell("lost", lost);
        }

        private void tell(String what, Collection<TopicPartition> partitions) {
            var numbers = partitions.stream().map(one -> one.partition() + ",").collect(Collectors.joining());
            var me = consumer.groupMetadata();
            say(what + " " + me.memberId() + " " + me.generationId() + " " + (numbers.isEmpty() ? "," : numbers));
        }
    }
}
