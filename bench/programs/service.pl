# A small service: orders in JSON are read, priced, sorted and rendered, over and over.
use strict;
use warnings;
use Digest::SHA qw(sha256);
use JSON::PP;

srand(1);
my $json = JSON::PP->new->canonical;

sub order {
    my ($number) = @_;
    my @lines = map { { sku => 'sku-' . int(rand(5000)), count => 1 + int(rand(8)) } } 1 .. 30;
    return { number => $number, customer => 'customer ' . $number % 97, lines => \@lines };
}

sub price {
    my ($line) = @_;
    return $line->{count} * unpack('n', sha256($line->{sku}));
}

sub render {
    my ($order) = @_;
    (my $name = $order->{customer}) =~ s/\b(\w)/\U$1/g;
    my @rows = sort { price($b) <=> price($a) } @{ $order->{lines} };
    return join("\n", $name, map { sprintf('%12s %8d', $_->{sku}, price($_)) } @rows);
}

for (my $number = 0;; $number += 10) {
    my $read = $json->decode($json->encode([ map { order($number + $_) } 1 .. 10 ]));
    my $text = join("\n", map { render($_) } @$read);
}
