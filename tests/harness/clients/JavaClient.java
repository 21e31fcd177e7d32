// Produces with Kafka's Java client, and reads by assignment; test_kafka_java.py checks the output.
// Usage: JavaClient BOOTSTRAP TOPIC. The topic must exist, with one partition that accepts records of 12 MB.

import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

public class JavaClient {
    static final String[] CODECS = {"none", "gzip", "snappy", "lz4", "zstd"};
    static final long TIME = System.currentTimeMillis() - 1_000_000;

    public static void main(String[] args) throws Exception {
        TopicPartition log = new TopicPartition(args[1], 0);
        for (String codec : CODECS) {
            produce(args[0], log.topic(), codec);
        }
        consume(args[0], log);
    }

    static void produce(String bootstrap, String topic, String codec) throws Exception {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", bootstrap);
        settings.put("compression.type", codec);
        settings.put("max.request.size", "20000000");
        settings.put("buffer.memory", "67108864");
        var serializer = new ByteArraySerializer();
        try (var producer = new KafkaProducer<byte[], byte[]>(settings, serializer, serializer)) {
            List<ProducerRecord<byte[], byte[]>> records = new ArrayList<>();
            records.add(new ProducerRecord<>(topic, 0, TIME, bytes("key"), bytes(codec)));
            records.add(new ProducerRecord<>(topic, 0, TIME + 1, null, new byte[0]));
            records.add(new ProducerRecord<>(topic, 0, TIME + 2, new byte[0], (byte[]) null));
            var headers = new ProducerRecord<byte[], byte[]>(topic, 0, TIME + 3, null, bytes("headers"));
            headers.headers().add("a", bytes("1")).add("a", bytes("2")).add("n", null).add("e", new byte[0]);
            records.add(headers);
            records.add(new ProducerRecord<>(topic, 0, TIME + 4, null, new byte[10_000_000]));
            for (var record : records) {
                System.out.println("sent " + producer.send(record).get().offset());
            }
        }
    }

    static void consume(String bootstrap, TopicPartition log) {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", bootstrap);
        settings.put("enable.auto.commit", "false");
        var deserializer = new ByteArrayDeserializer();
        try (var consumer = new KafkaConsumer<byte[], byte[]>(settings, deserializer, deserializer)) {
            consumer.assign(List.of(log));
            System.out.println("start " + consumer.beginningOffsets(List.of(log)).get(log));
            System.out.println("end " + consumer.endOffsets(List.of(log)).get(log));
            System.out.println("at time " + consumer.offsetsForTimes(Map.of(log, TIME + 3)).get(log).offset());
            System.out.println("after all " + consumer.offsetsForTimes(Map.of(log, TIME + 5)).get(log));
            consumer.seekToBeginning(List.of(log));
            for (int read = 0; read < 5 * CODECS.length; ) {
                for (var record : consumer.poll(Duration.ofSeconds(10))) {
                    System.out.println(format(record));
                    read++;
                }
            }
        }
    }

    static String format(ConsumerRecord<byte[], byte[]> record) {
        StringBuilder text = new StringBuilder("read " + record.offset() + " +" + (record.timestamp() - TIME));
        text.append(" ").append(text(record.key())).append(" ").append(text(record.value()));
        for (Header header : record.headers()) {
            text.append(" ").append(header.key()).append("=").append(text(header.value()));
        }
        return text.toString();
    }

    static String text(byte[] bytes) {
        if (bytes == null) return "null";
        return bytes.length > 100 ? bytes.length + " bytes" : "'" + new String(bytes, StandardCharsets.UTF_8) + "'";
    }

    static byte[] bytes(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }
}
