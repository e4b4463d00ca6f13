// A program with go-nsq, as somebody might have written it for a real nsqd; `./dev servers` builds it.
//
//	go_nsq -nsqd=127.0.0.1:4150 -topic=t publish         each line of stdin becomes a message
//	go_nsq -lookupd=127.0.0.1:4161 -topic=t consume      each message becomes a line, until SIGTERM
//
// Every other line goes out by PUB, the rest as one MPUB; with -defer=200ms, all go out by
// DPUB. With -requeue, each message is requeued when it first comes, and printed when it comes again.
package main

import (
	"bufio"
	"flag"
	"io"
	"log"
	"os"
	"os/signal"
	"syscall"

	nsq "github.com/nsqio/go-nsq"
)

const maxInFlight = 100

var (
	nsqd    = flag.String("nsqd", "", "TCP address of nsqd")
	lookupd = flag.String("lookupd", "", "HTTP address of nsqlookupd, to consume")
	topic   = flag.String("topic", "", "topic")
	channel = flag.String("channel", "", "channel, to consume")
	delay   = flag.Duration("defer", 0, "publish by DPUB")
	requeue = flag.Bool("requeue", false, "requeue each message once")
)

func publish(config *nsq.Config) {
	producer, err := nsq.NewProducer(*nsqd, config)
	check(err)
	defer producer.Stop()
	var batch [][]byte
	for number, line := range lines(os.Stdin) {
		switch {
		case *delay > 0:
			check(producer.DeferredPublish(*topic, *delay, line))
		case number%2 == 0:
			check(producer.Publish(*topic, line))
		default:
			batch = append(batch, line)
		}
	}
	if len(batch) > 0 {
		check(producer.MultiPublish(*topic, batch))
	}
}

func lines(input io.Reader) [][]byte {
	var all [][]byte
	for reader := bufio.NewReader(input); ; {
		line, err := reader.ReadBytes('\n')
		if err == io.EOF {
			return all
		}
		check(err)
		all = append(all, line[:len(line)-1])
	}
}

func consume(config *nsq.Config) {
	term := make(chan os.Signal, 1)
	signal.Notify(term, syscall.SIGTERM)
	config.MaxInFlight = maxInFlight
	consumer, err := nsq.NewConsumer(*topic, *channel, config)
	check(err)
	consumer.AddHandler(nsq.HandlerFunc(handle))
	if *lookupd != "" {
		check(consumer.ConnectToNSQLookupd(*lookupd))
	} else {
		check(consumer.ConnectToNSQD(*nsqd))
	}
	<-term
	consumer.Stop()
	<-consumer.StopChan
}

func handle(message *nsq.Message) error {
	if *requeue && message.Attempts == 1 {
		message.RequeueWithoutBackoff(0)
		return nil
	}
	_, err := os.Stdout.Write(append(message.Body, '\n'))
	return err
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

func main() {
	config := nsq.NewConfig()
	flag.Var(&nsq.ConfigFlag{Config: config}, "option", "NAME,VALUE of go-nsq")
	flag.Parse()
	switch flag.Arg(0) {
	case "publish":
		publish(config)
	case "consume":
		consume(config)
	default:
		log.Fatal("publish or consume?")
	}
}
