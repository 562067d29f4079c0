package reaper

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/sallyport/sallyport/internal/bus"
	"github.com/sallyport/sallyport/internal/service"
	"github.com/sallyport/sallyport/internal/wire"
)

// ServiceName is what `nats micro` calls a reaper.
const ServiceName = "sallyport-reaper"

// serviceGroup is the queue group that all reapers share.
const serviceGroup = "reaper"

// ServiceConfig is the configuration of the service of Endpoints.
func ServiceConfig(version string, replies wire.ReplyRule) service.Config {
	return service.Config{
		Name: ServiceName, Description: "decides about leases in quarantine", Version: version, Group: serviceGroup, Replies: replies,
	}
}

// Endpoints are the operators' commands on quarantined leases, for a service. Any
// reaper can answer for all records, also those of hosts that it does not serve.
func (d *Desk) Endpoints(subjects wire.Subjects) []service.Endpoint {
	serve := map[wire.ReaperOp]func(context.Context, *service.Request, wire.ReaperRequest){wire.OpList: d.serveList, wire.OpShow: d.serveShow}
	var list []service.Endpoint
	for _, op := range []wire.ReaperOp{wire.OpList, wire.OpShow, wire.OpRetry, wire.OpHold, wire.OpRelease, wire.OpResolve} {
		answer := serve[op]
		if answer == nil {
			answer = func(ctx context.Context, r *service.Request, q wire.ReaperRequest) {
				stored, err := d.Act(ctx, Order{Op: op, Lease: q.Lease, By: q.By, Text: q.Text})
				respond(r, stored, err)
			}
		}
		list = append(list, service.Endpoint{Name: string(op), Subject: subjects.Reaper(op), Serve: func(ctx context.Context, r *service.Request) {
			var q wire.ReaperRequest
			if data := r.Data(); len(data) > 0 {
				if err := json.Unmarshal(data, &q); err != nil {
					r.Refuse(service.CodeInvalid, `the body must be like {"lease":"…","by":"…","text":"…"}`, nil, nil)
					return
				}
			}
			answer(ctx, r, q)
		}})
	}
	return list
}

func (d *Desk) serveShow(ctx context.Context, r *service.Request, q wire.ReaperRequest) {
	stored, err := d.Show(ctx, q.Lease)
	respond(r, stored, err)
}

func (d *Desk) serveList(ctx context.Context, r *service.Request, q wire.ReaperRequest) {
	if q.Max == 0 {
		q.Max = wire.MaxReaperList
	}
	if q.Max < 1 || q.Max > wire.MaxReaperList {
		r.Refuse(service.CodeInvalid, fmt.Sprintf("max: must be from 1 to %d", wire.MaxReaperList), nil, nil)
		return
	}
	records, err := d.List(ctx)
	if err != nil && len(records) == 0 {
		r.Fail(service.CodeUnavailable, err)
		return
	}
	answer := wire.ReaperList{Records: []wire.ReaperRecord{}, Next: q.After}
	for _, rec := range records {
		if rec.Seq <= q.After {
			continue
		}
		if len(answer.Records) == q.Max {
			answer.More = true
			break
		}
		brief := rec.Record
		brief.Evidence, brief.Handle = nil, nil
		answer.Records = append(answer.Records, wire.ReaperRecord{Seq: rec.Seq, Time: rec.Time, Record: brief})
		answer.Next = rec.Seq
	}
	r.Answer(answer)
}

// respond answers with a record, or says why not in a code of its own.
func respond(r *service.Request, stored *bus.StoredQuarantine, err error) {
	code := 0
	switch {
	case err == nil:
		r.Answer(wire.ReaperRecord{Seq: stored.Seq, Time: stored.Time, Record: stored.Record})
		return
	case errors.Is(err, ErrNotInQuarantine):
		code = service.CodeNotFound
	case errors.Is(err, ErrNoEvidence):
		code = service.CodeInvalid
	case errors.Is(err, ErrFinished), errors.Is(err, ErrHeld), errors.Is(err, bus.ErrConflict):
		code = service.CodeConflict
	case errors.Is(err, bus.ErrUnknown):
		r.Fail(service.CodeUnknown, err)
		return
	default:
		r.Fail(service.CodeUnavailable, err)
		return
	}
	r.Refuse(code, wire.Message("%v", err), nil, nil)
}
