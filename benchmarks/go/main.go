// One run of go-nsq against a real nsqd: the same contract as the workers in ../clients.
//
//	client SCENARIO NSQD TOPIC COUNT
//
// It connects, publishes or consumes COUNT messages, and prints one line of JSON.
package main

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"log"
	"os"
	"slices"
	"strconv"
	"sync/atomic"
	"syscall"
	"time"

	nsq "github.com/nsqio/go-nsq"
)

// These are the numbers of ../clients/worker.py.
const (
	channel             = "bench"
	bodySize            = 200
	inFlight            = 200
	batchSize           = 200
	maxInFlight         = 2500
	pace                = time.Millisecond
	outputBufferTimeout = 25 * time.Millisecond
)

// Of 1, 2, 8 and 100 the one with the best median, by a little.
const handlers = 8

type report struct {
	Messages int     `json:"messages"`
	Seconds  float64 `json:"seconds"`
	CPU      float64 `json:"cpu_seconds"`
	P50      float64 `json:"p50,omitempty"` // seconds
	P99      float64 `json:"p99,omitempty"`
}

// stopwatch takes the time and the CPU time of this process, user and system.
type stopwatch struct {
	wall time.Time
	cpu  time.Duration
}

func startStopwatch() stopwatch { return stopwatch{time.Now(), cpuTime()} }

func (s stopwatch) stop(messages int) report {
	return report{
		Messages: messages,
		Seconds:  time.Since(s.wall).Seconds(),
		CPU:      (cpuTime() - s.cpu).Seconds(),
	}
}

func cpuTime() time.Duration {
	var usage syscall.Rusage
	check(syscall.Getrusage(syscall.RUSAGE_SELF, &usage))
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// publish keeps 200 messages in flight by PublishAsync. 200 goroutines that call Publish were tried
// too: on two cores they got a tenth to a third fewer a second in nearly every run.
func publish(addr, topic string, count int) report {
	producer := newProducer(addr, nsq.NewConfig())
	defer producer.Stop()
	body := make([]byte, bodySize)
	done := make(chan *nsq.ProducerTransaction, inFlight)
	watch := startStopwatch()
	for i := 0; i < count+inFlight; i++ {
		if i >= inFlight {
			check((<-done).Error)
		}
		if i < count {
			check(producer.PublishAsync(topic, body, done))
		}
	}
	return watch.stop(count)
}

// publishMany publishes 200 at a time, one batch after the other.
func publishMany(addr, topic string, count int) report {
	producer := newProducer(addr, nsq.NewConfig())
	defer producer.Stop()
	bodies := make([][]byte, batchSize)
	for i := range bodies {
		bodies[i] = make([]byte, bodySize)
	}
	watch := startStopwatch()
	for i := 0; i < count; i += batchSize {
		check(producer.MultiPublish(topic, bodies))
	}
	return watch.stop(count)
}

// consume takes the time from the first message to the last that counts; there are more behind it.
func consume(addr, topic string, count int) report {
	var seen atomic.Int64
	var watch stopwatch
	var result report
	done := make(chan struct{})
	consumer := newConsumer(topic, nsq.NewConfig(), func(*nsq.Message) error {
		switch seen.Add(1) {
		case 1:
			watch = startStopwatch()
		case int64(count):
			result = watch.stop(count)
			close(done)
		}
		return nil
	})
	check(consumer.ConnectToNSQD(addr))
	<-done
	stop(consumer)
	return result
}

// latency publishes at an even pace; each body says when it was published.
func latency(addr, topic string, count int) report {
	config := nsq.NewConfig()
	config.OutputBufferTimeout = outputBufferTimeout
	start := time.Now()
	arrived := make(chan time.Duration, count+1)
	consumer := newConsumer(topic, config, func(message *nsq.Message) error {
		published := time.Duration(binary.BigEndian.Uint64(message.Body))
		arrived <- time.Since(start) - published
		return nil
	})
	check(consumer.ConnectToNSQD(addr))
	defer stop(consumer)
	producer := newProducer(addr, config)
	defer producer.Stop()
	send := func() {
		body := make([]byte, bodySize)
		binary.BigEndian.PutUint64(body, uint64(time.Since(start)))
		check(producer.Publish(topic, body))
	}

	send() // the first one finds the subscription in place, or waits for it: it does not count
	<-arrived
	watch := startStopwatch()
	for i := range count {
		time.Sleep(time.Until(watch.wall.Add(time.Duration(i) * pace)))
		send()
	}
	took := make([]time.Duration, count)
	for i := range took {
		took[i] = <-arrived
	}
	result := watch.stop(count)
	slices.Sort(took)
	result.P50 = took[count/2].Seconds()
	result.P99 = took[count*99/100].Seconds()
	return result
}

func newProducer(addr string, config *nsq.Config) *nsq.Producer {
	producer, err := nsq.NewProducer(addr, config)
	check(err)
	producer.SetLogger(log.Default(), nsq.LogLevelError)
	check(producer.Ping())
	return producer
}

func newConsumer(topic string, config *nsq.Config, handler nsq.HandlerFunc) *nsq.Consumer {
	config.MaxInFlight = maxInFlight
	consumer, err := nsq.NewConsumer(topic, channel, config)
	check(err)
	consumer.SetLogger(log.Default(), nsq.LogLevelError)
	consumer.AddConcurrentHandlers(handler, handlers)
	return consumer
}

func stop(consumer *nsq.Consumer) {
	consumer.Stop()
	<-consumer.StopChan
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

func main() {
	scenarios := map[string]func(addr, topic string, count int) report{
		"publish":      publish,
		"publish_many": publishMany,
		"consume":      consume,
		"latency":      latency,
	}
	if len(os.Args) != 5 || scenarios[os.Args[1]] == nil {
		log.Fatal("usage: client publish|publish_many|consume|latency NSQD TOPIC COUNT")
	}
	count, err := strconv.Atoi(os.Args[4])
	check(err)
	line, err := json.Marshal(scenarios[os.Args[1]](os.Args[2], os.Args[3], count))
	check(err)
	fmt.Println(string(line))
}
