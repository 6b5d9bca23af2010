use strict;
use warnings;
use feature 'lexical_subs';
no warnings 'experimental::lexical_subs';
use List::Util ();
use POSIX ();

my $printed = shift;

# Prints what `caller` says, and ends the process, which is a copy of the program. Blocks of `eval` belong to their
# function.
sub print_stack {
    my @frames = caller 0;
    my ($text, $file, $line) = ('', @frames[1, 2]);
    for (my $depth = 1; my @frame = caller $depth; $depth++) {
        next if $frame[3] eq '(eval)' && !defined $frame[6] && !defined $frame[7];
        $text .= "$frame[3]\t$file\t$line\n";
        ($file, $line) = @frame[1, 2];
    }
    open my $out, '>', $printed or die;
    syswrite $out, "$text<toplevel>\t$file\t$line\nend\n";
    POSIX::_exit(0);
}

package Shape;
use overload '+' => sub { my ($self, $other) = @_; return Shape->new(main::fib(4) + $self->{width} + $other) },
    '""' => \&text, '<=>' => sub { my ($one, $other) = @_; return main::fib(3) && $one->{width} <=> $other->{width} };

sub new { my ($class, $width) = @_; return bless { width => $width }, $class }

sub text {
    my $self = shift;
    my $total = 0;
    $total += $self->{width} * $_ for 1 .. 30;
    return "shape $total";
}

our $AUTOLOAD;

sub AUTOLOAD {
    my $self = shift;
    my $name = $AUTOLOAD;
    return $name =~ /::area$/ ? main::fib(5) * $self->{width} : 0;
}

sub DESTROY { my $self = shift; main::spin($self->{width} % 7); return }

package Tied;
sub TIESCALAR { my $class = shift; return bless [], $class }
sub FETCH { my $self = shift; return main::spin(20) }
sub STORE { my ($self, $value) = @_; main::spin(10); return }
sub TIEARRAY { my $class = shift; return bless [], $class }
sub FETCHSIZE { return 3 }
sub UNTIE { return }

package main;

sub fib { my $n = shift; return $n < 2 ? $n : fib($n - 1) + fib($n - 2) }

sub spin {
    my $count = shift;
    my $total = 0;
    for my $i (1 .. $count) {
        $total += $i * 3;
        $total %= 1000;
    }
    return $total;
}

sub by_width { return fib(3) && $a->{width} <=> $b->{width} }

sub sorted {
    my @shapes = map { Shape->new($_) } 9, 3, 7, 5, 8, 1;
    my @sorted = sort by_width @shapes;
    @sorted = sort { $a->{width} <=> $b->{width} } @sorted;
    @sorted = sort { $a <=> $b } @sorted;
    @sorted = sort { by_width() } @sorted;
    return scalar @sorted;
}

sub closure { my $n = shift; return sub { my $m = shift; return spin($n + $m) } }

sub called_from_c {
    my $closure = closure(5);
    my $first = List::Util::first { $closure->($_) > 1 << 20 } 1 .. 8;
    my $sum = List::Util::reduce { $a + spin($b) } 1 .. 8;
    return $sum;
}

sub overloaded {
    my $shape = Shape->new(3) + 4;
    my $text = "$shape";
    my $area = $shape->area;
    return $text;
}

sub tied_value {
    tie my $scalar, 'Tied';
    my $value = $scalar;
    $scalar = 4;
    tie my @array, 'Tied';
    $value += $_ // 0 for @array;
    return $value;
}

sub dies { my $depth = shift; spin(8); die "deep\n" if !$depth; return dies($depth - 1) + 1 }

sub catches {
    my $caught = eval { dies(5); 1 };
    my $again = eval { my $inner = eval { spin(30); dies(1) }; spin(20); dies(2); 1 };
    return $caught;
}

sub in_text {
    my $n = shift;
    my $value = eval "sub of_text_$n { return spin(\$_[0] + $n) } of_text_$n(20)";
    $value += eval "my \$x = spin(10); fib(4) + spin(\$x % 10 + $n)";
    return $value;
}

sub in_regex {
    my $found = 'abcab' =~ /a(?{ spin(15) })b(?{ my $x = fib(3); $x + 1 })c/;
    my $changed = 'aXbXc' =~ s/X/spin(5)/egr;
    return $found;
}

sub jumps { @_ = (20); goto &spin }

sub warns {
    local $SIG{__WARN__} = sub { my $text = shift; return spin(length $text) };
    warn "to nobody\n";
    return 1;
}

sub lexical {
    my sub inner { my $n = shift; return $n ? spin($n) : 0 }
    return inner(25);
}

sub descend {
    my $depth = shift;
    return spin(60) if !$depth;
    return descend($depth - 1) + 1;
}

sub main {
    my $action = POSIX::SigAction->new(\&print_stack, POSIX::SigSet->new, 0);
    POSIX::sigaction(POSIX::SIGUSR1(), $action) or die;
    kill 'TRAP', $$;
    my $round = 0;
    while (1) {
        $round++;
        sorted();
        called_from_c();
        overloaded();
        tied_value();
        catches();
        in_text($round);
        in_regex();
        jumps();
        warns();
        lexical();
        descend(40);
    }
}

no warnings 'recursion';
main();
