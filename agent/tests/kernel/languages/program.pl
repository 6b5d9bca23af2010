# Works in known call paths in turn, for as many seconds as the argument says.
#
# Prints the subs of each path, leaf first, and for each round its start and the CPU time of each path's work.
use strict;
use warnings;
no warnings 'recursion';
use List::Util ();

my $seconds = shift;
my $has_threads = eval { require threads; 1 };
my (@cases, %spent);
srand 1;

# Returns the CPU time of the thread in nanoseconds. Not all installations have the module with this clock.
sub cpu_ns {
    my $time = "\0" x 16;
    syscall 228, 3, $time;
    my ($whole, $ns) = unpack 'qq', $time;
    return $whole * 1_000_000_000 + $ns;
}

sub unix_ns {
    my $time = "\0" x 16;
    syscall 228, 0, $time;
    my ($whole, $ns) = unpack 'qq', $time;
    return $whole * 1_000_000_000 + $ns;
}

sub spin {
    my $label = shift;
    my $begin = cpu_ns();
    my $end = $begin + 5_000_000 + int rand 35_000_000;
    my $total = 0;
    while (cpu_ns() < $end) {
        $total += $_ * $_ for 1 .. 500;
    }
    $spent{$label} = cpu_ns() - $begin;
    return $spent{$label};
}

sub work_recursion { spin('recursion'); return }

sub descend {
    my ($depth, $work) = @_;
    if ($depth) { descend($depth - 1, $work) } else { $work->() }
    return;
}

sub recursion { descend(40, \&work_recursion); return }

sub work_deep { spin('deep'); return }

sub deep { descend(900, \&work_deep); return }

sub work_closure { spin('closure'); return }
sub work_freed { spin('freed'); return }

package Worker;
sub new { my ($class, $work) = @_; return bless { work => $work }, $class }
sub method { my $self = shift; $self->{closure} ||= sub { $self->{work}->(); return }; $self->{closure}->(); return }
package main;

sub enclose {
    my $worker = Worker->new(shift);
    return sub { $worker->method; return };
}

my $kept = enclose(\&work_closure);
sub closure { $kept->(); return }

# The closures are freed at once. They refer to each other, so the first one must be removed.
sub freed { my $worker = Worker->new(\&work_freed); $worker->method; delete $worker->{closure}; return }

sub work_exception { spin('exception'); return }

sub throw {
    my $depth = shift;
    die "thrown\n" unless $depth;
    throw($depth - 1);
    return;
}

sub catch {
    eval { throw(20); 1 } or work_exception();
    return;
}

sub exception { catch(); return }

sub work_in_eval { spin('in_eval'); return }

sub protected {
    my $done = eval { work_in_eval(); die "thrown\n" };
    return $done;
}

sub in_eval { protected(); return }

sub work_in_text { spin('in_text'); return }

sub in_text { my $done = eval 'work_in_text(); 1'; return $done }

sub work_native { spin('native'); return }

sub compare { my ($left, $right) = @_; work_native(); return $left <=> $right }

sub sorts { my @sorted = sort { compare($a, $b) } 2, 1; return $sorted[0] }

sub native { my $found = List::Util::first(sub { my $is_one = sorts() == 1; return $is_one }, 1); return $found }

sub work_overloaded { spin('overloaded'); return '' }

package Text;
use overload '""' => sub { my $text = main::work_overloaded(); return $text };
package main;

sub overloaded { my $object = bless [], 'Text'; my $text = "$object"; return $text }

sub work_redefined_0 { spin('redefined_0'); return }
sub work_redefined_1 { spin('redefined_1'); return }

# Subs of the last rounds. They are freed later than 250 ms after their last call, when their names are read.
my @kept;

# Makes a sub twenty times, and calls the last one. Later subs take the memory of earlier ones.
sub redefine {
    my ($package, $work) = @_;
    my $sub;
    $sub = eval "package $package; my \$one = 1; sub { main::$work(\$one); return }" or die $@ for 1 .. 20;
    push @kept, $sub;
    shift @kept if 6 < @kept;
    $sub->();
    return;
}

sub redefined_0 { redefine('First', 'work_redefined_0'); return }
sub redefined_1 { redefine('Second', 'work_redefined_1'); return }

sub work_thread_0 { return spin('thread_0') }
sub work_thread_1 { return spin('thread_1') }
sub work_thread_2 { return spin('thread_2') }
sub work_thread_3 { return spin('thread_3') }

# Works once for each byte from a pipe. A thread has its own copies of all subs, so it runs until the end.
sub serve {
    my ($thread, $input, $output) = @_;
    my $work = __PACKAGE__->can("work_thread_$thread");
    while (sysread $input, my $byte, 1) { syswrite $output, pack 'q', $work->() }
    return;
}

my @threads;
sub start_threads {
    for my $thread (0 .. 3) {
        pipe my $input, my $request or die;
        pipe my $response, my $output or die;
        srand $thread;
        threads->create('serve', $thread, $input, $output)->detach;
        push @threads, [$request, $response];
    }
    return;
}

sub run_threads {
    syswrite $_->[0], '.' for @threads;
    for my $thread (0 .. 3) {
        sysread $threads[$thread][1], my $ns, 8;
        $spent{"thread_$thread"} = unpack 'q', $ns;
    }
    return;
}

# The subs between the work of each case and the case itself, leaf first.
my @between = (
    [recursion => 'main::descend*41'],
    [deep => 'main::descend*901'],
    [closure => 'Worker::__ANON__', 'Worker::method', 'main::__ANON__'],
    [freed => 'Worker::__ANON__?', 'Worker::method'],
    [exception => 'main::catch'],
    [in_eval => 'main::protected'],
    [in_text => '(eval)?'],
    [native => 'main::compare', 'main::sorts', 'main::__ANON__'],
    [overloaded => 'Text::__ANON__'],
    [redefined_0 => 'First::__ANON__', 'main::redefine'],
    [redefined_1 => 'Second::__ANON__', 'main::redefine'],
);
for (@between) {
    my ($label, @functions) = @$_;
    my $case = __PACKAGE__->can($label);
    my @main = ("main::$label", 'main::main', '<toplevel>');
    push @cases, [$label, $case, 'main::spin', "main::work_$label", @functions, @main];
}

sub main {
    my @rounds;
    start_threads() if $has_threads;
    my $until = unix_ns() + $seconds * 1_000_000_000;
    while (unix_ns() < $until) {
        my $begin = unix_ns();
        for my $case (@cases) { $case->[1]->() }
        run_threads() if $has_threads;
        push @rounds, [$begin, { %spent }];
    }
    # The agent reads the last names while the program still runs.
    sleep 1;
    if ($has_threads) {
        my @outer = ('main::serve', '<toplevel>');
        push @cases, ["thread_$_", undef, 'main::spin', "main::work_thread_$_", @outer] for 0 .. 3;
    }
    print "inner main::cpu_ns\n";
    for my $case (@cases) {
        my ($label, undef, @stack) = @$case;
        print "case $label ", join(';', @stack), "\n";
    }
    for my $round (@rounds) {
        my ($begin, $cpu) = @$round;
        print join(' ', 'round', $begin, map { $cpu->{$_->[0]} } @cases), "\n";
    }
    return;
}

main();
