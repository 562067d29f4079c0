package daemon

import (
	"github.com/rs/zerolog"

	"github.com/sallyport/sallyport/internal/bus"
	"github.com/sallyport/sallyport/internal/config"
	"github.com/sallyport/sallyport/internal/reaper"
	"github.com/sallyport/sallyport/internal/service"
	"github.com/sallyport/sallyport/internal/wire"
)

// newDesk takes what operators decide about quarantine.
func newDesk(cfg *config.Config, b *bus.Bus, build Build, log zerolog.Logger) (part, error) {
	replies, err := serviceReplies(cfg, b, log)
	if err != nil {
		return part{}, err
	}
	s, err := service.New(b, log, reaper.ServiceConfig(build.Version, replies), reaper.NewDesk(b).Endpoints(b.Subjects())...)
	if err != nil {
		return part{}, err
	}
	return part{"operators' commands", s.Run}, nil
}

// serveOperators tells what the worker holds.
func (w *worker) serveOperators(cfg *config.Config, inst *Instance, build Build, log zerolog.Logger) (*service.Service, error) {
	replies, err := serviceReplies(cfg, w.bus, log)
	if err != nil {
		return nil, err
	}
	return service.New(w.bus, log, service.WorkerConfig(build.Version, replies), service.Leases(w.bus.Subjects(), inst.Worker, inst.Host, w.held))
}

func (w *worker) held() []wire.HeldLease {
	leases := w.pool.Leases()
	held := make([]wire.HeldLease, 0, len(leases))
	for _, l := range leases {
		held = append(held, wire.HeldLease{
			Lease: l.ID, Provider: l.Provider, Profile: l.Profile, State: l.State.String(), Tenant: l.Tenant, Uses: l.Uses, Since: l.Born,
		})
	}
	return held
}
